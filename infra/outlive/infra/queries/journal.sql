-- The journal: one statement makes a batch durable (checkpoint, ledger, answers, children, progress), fenced row by row.
-- Connections that run it set plan_cache_mode = force_generic_plan, enable_seqscan, enable_mergejoin and jit off, hash joins on.

-- name: batch
-- $1 owner; $2 one row a task, its rare changes within; $3 facts; $4 operations; $5 attempts; $6 answers; $7 children.
-- l locks the task rows in key order (unordered, batches of several writers deadlock) and goes on only where owner, epoch and version fit.
-- Returns the ordinals that were refused: in the normal case no row at all.
with b as materialized (
  select x.i, x.tenant, x.task_id, x.epoch, x.after, x.n, x.last_seq, x.published, x.published_at, x.applied, x.steps, x.current_step,
         x.state as s, (x.state).status as status, (x.state).leave as leave, (x.state).waiting_for as waiting_for
    from unnest($2::journal_task[]) x),
l as materialized (
  select b.i
    from task t join b on t.tenant = b.tenant and t.task_id = b.task_id
   where t.owner is not distinct from $1 and t.epoch = b.epoch and t.version = b.after  -- not by the owner's index
     and (b.leave is distinct from 'drained' or t.inbox_head = b.applied)
   order by t.tenant, t.task_id
     for no key update of t),
own as (
  update task t
     set version = b.after + b.n,
         last_seq = b.last_seq,
         published_at = case when b.published >= t.published then b.published_at else t.published_at end,
         published = greatest(t.published, b.published),
         applied = greatest(t.applied, b.applied),
         steps = b.steps,
         current_step = b.current_step,
         updated_at = (select outlive.clock()),
         status = coalesce(b.status, t.status),
         reasons = case when (b.s).reasons = '[]' then null else coalesce((b.s).reasons, t.reasons) end,
         cancelling = coalesce((b.s).cancelling, t.cancelling),
         compensating = coalesce((b.s).compensating, t.compensating),
         waiting_for = case when b.waiting_for is null then t.waiting_for else nullif(b.waiting_for, '') end,
         wait_until = case when b.waiting_for is null then t.wait_until else (b.s).wait_until end,
         note_done = coalesce((b.s).note_done, t.note_done),
         note_total = coalesce((b.s).note_total, t.note_total),
         plan_total = coalesce((b.s).plan_total, t.plan_total),
         plan_version = coalesce((b.s).plan_version, t.plan_version),
         model_version = coalesce((b.s).model_version, t.model_version),
         prompt_version = coalesce((b.s).prompt_version, t.prompt_version),
         code_version = coalesce((b.s).code_version, t.code_version),
         run = coalesce((b.s).run, t.run),
         run_from = coalesce((b.s).run_from, t.run_from),
         input = coalesce((b.s).input, t.input),
         owner = case when b.leave is null then t.owner end,
         due_at = case when b.leave is not null then (b.s).due_at end,
         mail_at = case when b.leave is not null and t.inbox_head > b.applied then (select outlive.clock()) end,
         sweep_at = case when b.leave is not null then (select outlive.clock()) + interval '1 second' end,
         tell_at = case when (b.s).tell then (select outlive.clock()) else t.tell_at end,
         ended_at = case when b.status in ('succeeded', 'failed', 'cancelled') then (select outlive.clock())
                         when b.status is not null then null else t.ended_at end
    from l join b on b.i = l.i
   where t.tenant = b.tenant and t.task_id = b.task_id and t.owner is not distinct from $1 and t.epoch = b.epoch and t.version = b.after
  returning b.i, t.tenant, t.task_id),
f as (
  insert into fact (tenant, task_id, seq, type, step_id, name, status, digest, attempt, took, inbox_pos, wait_until, codec, body, event, arguments,
                    item)
  select own.tenant, own.task_id, x.seq, x.type, x.step_id, x.name, x.status, x.digest, x.attempt, x.took, x.inbox_pos, x.wait_until,
         x.codec, x.body, x.event, x.arguments, x.item
    from unnest($3::journal_fact[]) x join own on own.i = x.i),
o as (
  insert into operation as o (tenant, task_id, step_id, operation_id, name, status, attempt, epoch, worker, digest, codec, arguments,
                              started_at, deadline, ended_at, note)
  select own.tenant, own.task_id, x.step_id, x.operation_id, x.name, x.status, x.attempt, b.epoch, $1, x.digest, x.codec, x.arguments,
         x.started_at, x.deadline, x.ended_at, x.note
    from unnest($4::journal_operation[]) x join own on own.i = x.i join b on b.i = x.i
  -- Another payload under the same key is refused: the column takes no null.
  on conflict (tenant, task_id, step_id, operation_id) do update
     set digest = case when o.digest = excluded.digest then o.digest end,
         status = excluded.status, attempt = excluded.attempt, epoch = excluded.epoch, worker = excluded.worker,
         started_at = excluded.started_at, deadline = excluded.deadline, ended_at = excluded.ended_at,
         note = coalesce(excluded.note, o.note),
         -- An outcome brings none; the next attempt of a request to a model may be another one.
         arguments = case when octet_length(excluded.arguments) > 0 then excluded.arguments else o.arguments end),
a as (
  insert into attempt (tenant, task_id, step_id, operation_id, attempt, worker, started_at, ended_at, error_class, reason, wait_until)
  select own.tenant, own.task_id, x.step_id, x.operation_id, x.attempt, x.worker, x.started_at, x.ended_at, x.error_class, x.reason,
         x.wait_until
    from unnest($5::journal_attempt[]) x join own on own.i = x.i),
z as materialized (
  select own.tenant, own.task_id, x.pos, x.code, x.message, x.taken, x.who, x.what, x.before, x.after
    from unnest($6::journal_answer[]) x join own on own.i = x.i),
u as (
  insert into audit (tenant, task_id, who, what, before, after, detail)
  select z.tenant, z.task_id, z.who, z.what, z.before, z.after, z.code || ': ' || z.message
    from z where z.who is not null order by z.tenant, z.task_id, z.pos),
w as (
  update inbox y
     set code = coalesce(y.code, z.code), message = coalesce(y.message, z.message), taken = y.taken or z.taken,
         decided_at = coalesce(y.decided_at, (select outlive.clock()))
    from z
   where y.tenant = z.tenant and y.task_id = z.task_id and y.pos = z.pos and y.pos is not null),
c as (
  insert into task (tenant, task_id, kind, parent, parent_step, digest, codec, input, priority, labels, due_at)
  select own.tenant, x.task_id, x.kind, own.task_id, x.step_id, x.digest, x.codec, x.input, x.priority, x.labels, (select outlive.clock())
    from unnest($7::journal_child[]) x join own on own.i = x.i
  on conflict (tenant, task_id) do nothing)
select b.i from b left join own on own.i = b.i where own.i is null;

-- name: seen
-- What became of refused tasks: applied before (a lost answer), mail in the way of a leave, fenced. $1 tenants, $2 task ids.
select t.owner, t.epoch, t.version, t.inbox_head
  from unnest($1::text[], $2::text[]) with ordinality as k(tenant, task_id, i)
  left join task t on t.tenant = k.tenant and t.task_id = k.task_id
 order by k.i;
