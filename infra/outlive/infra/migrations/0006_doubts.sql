
-- What turned out about an attempt after it had been judged: an operation that may have happened twice, or happened after all. Written
-- like the audit trail, without a fence: it tells what a worker saw, whoever owns the task by now.
create table outlive_store.doubt (
  tenant text not null,
  task_id text not null,
  step_id text not null,
  operation_id text not null,
  attempt integer not null,                    -- the one that turned out
  worker uuid not null,                        -- who saw it
  message text not null,
  at timestamptz not null default outlive.clock(),
  primary key (tenant, task_id, step_id, operation_id, attempt)
);
