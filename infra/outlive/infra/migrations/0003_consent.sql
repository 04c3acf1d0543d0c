-- Business identities: who makes an action that a tool names by `unique=`. Asked before such an effect is begun, and by nobody else.
set local search_path = outlive_store;

create table identity (
  tenant text not null,
  tool text not null,
  scope text not null,                         -- a task's id (unique_within="task"), or '' for the whole tenant
  name text not null,                          -- what the tool's function said of the arguments
  task_id text not null,                       -- the step that holds it: it alone may send ...
  step_id text not null,
  operation_id text not null,
  digest bytea not null,                       -- ... these arguments
  since bigint not null,                       -- only facts of that step above this number say how it ended
  claimed_at timestamptz not null default outlive.clock(),
  primary key (tenant, tool, scope, name)
);

-- What a person should know of an operation beside its status: who agreed to it, why it was not sent.
alter table operation add column note text;
alter type journal_operation add attribute note text;

create or replace view outlive.operation as
  select tenant, task_id, step_id, operation_id, tenant || '/' || task_id || ':' || step_id || ':' || operation_id as key, name, status,
         attempt as attempts, encode(digest, 'hex') as digest, epoch, worker, started_at, deadline, ended_at, note
    from operation, (select) as read_only;
