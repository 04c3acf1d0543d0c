-- Outlive's store. The story in eight tables:
--   task       one row a task: who may write it (owner, epoch), how far it is (version, last_seq), when it is wanted (due_at, mail_at)
--   inbox      every command ever accepted, by (tenant, command_id): dedup ledger, mailbox (pos) and stored answer in one
--   fact       a task's history: append-only, one row a numbered event; where it is a step, also its name, digest and result
--   operation  one side effect of a step; the open attempt lives here
--   attempt    attempts that ended badly or were lost with their worker (one that succeeded is told by its operation)
--   death      a worker's end (or an actor's) that a task is suspected of
--   audit      who did what to a task, and refused writes; never fenced
--   dead_letter  messages that cannot be read
-- and four that belong to no tenant: cursor (how far a command stream was read), worker (heartbeats), kind (what may be submitted), migration.
--
-- Rules: tenant leads every key of a tenant's data. Bodies are bytea with a codec number (0 = JSON) and are never queried by content.
-- No index, and no predicate of one, names a column that a step changes (version, last_seq, published, published_at, applied, steps,
-- current_step, updated_at): it would end HOT updates. Time comes from outlive.clock() alone.

create schema if not exists outlive;
create schema if not exists outlive_store;
set local search_path = outlive_store;

-- The one clock. Tests replace it. Call it as (select outlive.clock()) wherever it bounds an index scan.
create function outlive.clock() returns timestamptz language sql stable parallel safe as 'select clock_timestamp()';

create table task (
  tenant text not null,
  task_id text not null,
  kind text not null,
  status text not null default 'queued',
  owner uuid,                                  -- the worker incarnation that has the actor in memory, else null
  epoch bigint not null default 0,             -- fencing token: grows with each claim, take-over and clerk's write
  version bigint not null default 0,           -- grows with each record of the journal
  last_seq bigint not null default 0,          -- last progress number given
  published bigint not null default 0,         -- last number known to be in the stream ...
  published_at bigint not null default 0,      -- ... and its sequence there
  inbox_head bigint not null default 0,        -- last position given in the inbox
  applied bigint not null default 0,           -- last position the owner or the clerk has seen
  due_at timestamptz,                          -- a worker with the code is wanted from then on; only while owner is null
  mail_at timestamptz,                         -- the clerk is wanted; only while owner is null
  sweep_at timestamptz,                        -- left with events that may not be in the stream yet
  tell_at timestamptz,                         -- parent (of an end) or children (of a cancel) are to be told
  cancelling boolean not null default false,
  priority smallint not null default 0,
  parent text,
  parent_step text,
  run integer not null default 1,              -- task.restart() begins a new one ...
  run_from bigint not null default 0,          -- ... whose facts have greater numbers
  steps integer not null default 0,            -- completed steps of this run
  current_step text,
  waiting_for text,                            -- 'signal go', 'sleep', 'child x', 'worker', in words
  wait_until timestamptz,
  note_done bigint,
  note_total bigint,
  plan_total integer,
  code_version text,
  schema_version integer not null default 1,
  digest bytea not null,                       -- of kind and input: a submit's identity
  labels jsonb not null default '{}',
  codec smallint not null default 0,
  input bytea not null,                        -- {"input": {...}, "goal": ..., "policy": {...}}
  reasons bytea,                               -- JSON list of Reason; null = none
  created_at timestamptz not null default outlive.clock(),
  updated_at timestamptz not null default outlive.clock(),
  ended_at timestamptz,
  primary key (tenant, task_id)
) with (fillfactor = 50);
create index task_due on task (priority desc, due_at) where due_at is not null;
create index task_mail on task (mail_at) where mail_at is not null;
create index task_owner on task (owner) where owner is not null;
create index task_sweep on task (sweep_at) where sweep_at is not null;
create index task_tell on task (tell_at) where tell_at is not null;
create index task_parent on task (tenant, parent) where parent is not null;
-- Its predicate is always true and hides it from look-ups by (tenant, task_id): on an empty table it costs the planner as little as the primary
-- key, and the plans that long connections keep would then read all of a tenant's entries for each task (130 ms instead of 2 for 500 tasks).
create index task_list on task (tenant, created_at desc, task_id) where created_at > '-infinity';

create table inbox (
  tenant text not null,
  command_id text not null,
  task_id text not null,
  pos bigint,                                  -- place in the task's mailbox; null = decided without it
  verb text not null,
  name text,                                   -- of a signal, or of the child that ended
  by text,
  claimed boolean not null default true,       -- false: `by` was proven by the subject's principal
  digest bytea not null,
  codec smallint not null default 0,
  body bytea not null,                         -- as it came
  code text,                                   -- the answer; null = not decided yet
  message text,
  received_at timestamptz not null default outlive.clock(),
  decided_at timestamptz,
  taken boolean not null default false,        -- a step's fact names this position
  primary key (tenant, command_id)
);
create unique index inbox_pos on inbox (tenant, task_id, pos) where pos is not null;

create table fact (
  tenant text not null,
  task_id text not null,
  seq bigint not null,
  type text not null,                          -- step | note | status | command | resumed
  step_id text,
  name text,
  status text,
  digest bytea,                                -- step: of its name and bound arguments
  attempt smallint,
  took bigint,                                 -- microseconds
  inbox_pos bigint,                            -- the inbox row that this step took
  wait_until timestamptz,
  codec smallint not null default 0,
  body bytea,                                  -- a step's result, a failure, the task's result
  arguments bytea,                             -- of a read-only step, if they are short; those of effects stand with the operation
  event bytea not null,                        -- the progress event as published
  at timestamptz not null default outlive.clock(),
  primary key (tenant, task_id, seq)
);

create table operation (
  tenant text not null,
  task_id text not null,
  step_id text not null,
  operation_id text not null,
  name text not null,
  status text not null,
  attempt integer not null,
  epoch bigint not null,
  worker uuid not null,
  digest bytea not null,
  codec smallint not null default 0,
  arguments bytea not null,
  started_at timestamptz not null,
  deadline timestamptz,                        -- last moment at which the open attempt may still reach the remote
  ended_at timestamptz,
  primary key (tenant, task_id, step_id, operation_id)
) with (fillfactor = 70);

create table attempt (
  tenant text not null,
  task_id text not null,
  step_id text not null,
  operation_id text not null,
  attempt integer not null,
  worker uuid not null,
  started_at timestamptz not null,
  ended_at timestamptz,
  error_class text,
  reason text,
  wait_until timestamptz,
  primary key (tenant, task_id, step_id, operation_id, attempt)
);

create table death (
  tenant text not null,
  task_id text not null,
  epoch bigint not null,                       -- the epoch that ended
  worker uuid not null,
  steps integer not null,                      -- completed steps then: a death counts only since the last one
  step_id text,                                -- the step in progress
  reason text not null,
  at timestamptz not null default outlive.clock(),
  primary key (tenant, task_id, epoch)
);

create table audit (
  tenant text not null,
  id bigint generated always as identity,
  at timestamptz not null default outlive.clock(),
  task_id text,
  who text not null,
  what text not null,
  before text,
  after text,
  detail text,
  primary key (tenant, id)
);
create index audit_task on audit (tenant, task_id, id);

create table dead_letter (
  tenant text not null,
  id bigint generated always as identity,
  at timestamptz not null default outlive.clock(),
  subject text not null,
  stream_seq bigint not null,
  reason text not null,
  headers jsonb not null default '{}',
  codec smallint not null default 0,
  body bytea not null,
  resolved_at timestamptz,
  resolution text,
  primary key (tenant, id)
);

create table cursor (
  stream text primary key,
  owner uuid,
  epoch bigint not null default 0,             -- fences a former ingester
  until timestamptz,
  seq bigint not null default 0,               -- last stream sequence taken in
  created text not null default '',            -- the stream's time of creation: another one is another stream
  at text not null default '',                 -- time and digest of the message at seq: a restored older copy differs
  digest bytea not null default '',
  purged bigint not null default 0
);

create table worker (
  incarnation uuid primary key,                -- one process start, never a name
  num integer generated always as identity,    -- its session advisory lock
  server_started timestamptz not null,         -- of the Postgres server when the lock was taken
  until timestamptz not null,                  -- the lease
  started_at timestamptz not null default outlive.clock(),
  host text not null,
  pid integer not null,
  version text not null,
  protocol integer not null,
  kinds text[] not null,
  slots integer not null,
  busy integer not null default 0,
  draining boolean not null default false,
  fenced boolean not null default false,       -- declared dead: may never write again
  health jsonb not null default '{}'
) with (fillfactor = 50);

create table kind (
  name text primary key,
  code_version text not null,
  input_schema jsonb not null,
  title text,
  registered_at timestamptz not null default outlive.clock()
);

-- What the journal hands over in one statement: arrays of these. `i` is the ordinal of the task in the batch.
create type journal_state as (status text, reasons bytea, cancelling boolean, waiting_for text, wait_until timestamptz,
  note_done bigint, note_total bigint, plan_total int, code_version text, leave text, due_at timestamptz, tell boolean,
  run int, run_from bigint, input bytea);
create type journal_task as (i int, tenant text, task_id text, epoch bigint, after bigint, n int, last_seq bigint,
  published bigint, published_at bigint, applied bigint, steps int, current_step text, state journal_state);
create type journal_fact as (i int, seq bigint, type text, step_id text, name text, status text, digest bytea, attempt smallint,
  took bigint, inbox_pos bigint, wait_until timestamptz, codec smallint, body bytea, event bytea, arguments bytea);
create type journal_operation as (i int, step_id text, operation_id text, name text, status text, attempt int, digest bytea,
  codec smallint, arguments bytea, started_at timestamptz, deadline timestamptz, ended_at timestamptz);
create type journal_attempt as (i int, step_id text, operation_id text, attempt int, worker uuid, started_at timestamptz,
  ended_at timestamptz, error_class text, reason text, wait_until timestamptz);
create type journal_answer as (i int, pos bigint, code text, message text, taken boolean, who text, what text, before text, after text);
create type journal_child as (i int, task_id text, step_id text, kind text, digest bytea, codec smallint, input bytea, priority smallint,
  labels jsonb);

-- Read-only, stable views for people and dashboards: outlive.task, step, operation, attempt, waiting. Columns are only ever added.
-- (Postgres lets a view of a single table be written; the empty second one forbids it and costs nothing.)
create view outlive.task as
  select tenant, task_id, kind, status, cancelling, priority, labels, parent, steps, current_step, waiting_for, wait_until,
         note_done as done, note_total as total, owner, epoch, last_seq, published, created_at, updated_at, ended_at
    from task, (select) as read_only;
create view outlive.step as
  select tenant, task_id, step_id, name, status, attempt, took, wait_until, seq, at from fact, (select) as read_only where type = 'step';
create view outlive.operation as
  select tenant, task_id, step_id, operation_id, tenant || '/' || task_id || ':' || step_id || ':' || operation_id as key, name, status,
         attempt as attempts, encode(digest, 'hex') as digest, epoch, worker, started_at, deadline, ended_at
    from operation, (select) as read_only;
create view outlive.attempt as
  select tenant, task_id, step_id, operation_id, attempt, worker, started_at, ended_at, error_class, reason, wait_until from attempt
  union all
  select tenant, task_id, step_id, operation_id, attempt, worker, started_at, ended_at, null, status, null
    from operation o where status in ('started', 'succeeded');
create view outlive.waiting as
  select tenant, task_id, kind, status, waiting_for, wait_until, convert_from(reasons, 'UTF8')::json as reasons, updated_at as since
    from task, (select) as read_only where status = 'paused';
