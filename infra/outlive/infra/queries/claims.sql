-- Who may run a task. A claim or take-over sets owner and epoch (and clears what asked for it), nothing else: the rest is the actor's first
-- record. Never a left join to worker in a locking query: the recheck after the lock reuses the joined row and claims too much.
-- `me` is empty once this worker is fenced, and holds back a fence until the claim is committed: else a worker that wakes up after its death
-- was dealt with could take a task whose owner nobody looks for any more.

-- name: claim
-- Tasks without an owner that are due; where there are few, the share of one of the workers that could take them. $1 me, $2 at most, $3 my kinds
with n as materialized (
  select count(*) as due
    from (select 1 from task where due_at <= (select outlive.clock()) and kind = any($3) limit 400) d),
p as materialized (
  select greatest(1, count(*)) as peers
    from worker where until > outlive.clock() and not fenced and not draining and busy < slots and kinds && $3),
me as materialized (
  select 1 from worker where incarnation = $1 and not fenced and (select due from n) > 0 for share),
c as materialized (
  select tenant, task_id
    from task
   where due_at <= (select outlive.clock()) and owner is null and kind = any($3) and status in ('queued', 'running', 'paused')
     and exists (select 1 from me)
   order by priority desc, due_at
   limit (select least($2::bigint, case when due >= 400 then $2::bigint else greatest(1, (due + peers - 1) / peers) end) from n, p)
     for no key update skip locked)
update task t
   set owner = $1, epoch = t.epoch + 1, due_at = null, mail_at = null, sweep_at = null
  from c
 where t.tenant = c.tenant and t.task_id = c.task_id and t.owner is null
returning t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.codec, t.input, t.epoch, t.version, t.last_seq, t.published, t.published_at,
  t.inbox_head, t.applied, t.steps, t.run, t.run_from, t.waiting_for, t.reasons, t.current_step, t.code_version, t.parent, 0::bigint as deaths,
  null::uuid as died;

-- name: take_over
-- Tasks of dead workers, each to one winner; a death is noted where a step may have been in progress. A task that has died $6 times is on
-- probation: from then on a death counts only if the task ran alone (its row in `death` was there before, see `alone`).
-- $1 me, $2 at most, $3 the dead, $4 my kinds, $5 their reasons, $6 deaths before probation
with me as materialized (
  select 1 from worker where incarnation = $1 and not fenced for share),
c as materialized (
  select tenant, task_id, owner, epoch, steps, current_step, waiting_for
    from task
   where owner = any($3::uuid[]) and kind = any($4) and exists (select 1 from me)
   order by priority desc, tenant, task_id
   limit $2
     for no key update skip locked),
k as materialized (
  select c.tenant, c.task_id, c.owner, c.epoch, c.steps, c.current_step, b.deaths,
         c.waiting_for is null
           and (b.deaths < $6 or exists (select 1 from death x where x.tenant = c.tenant and x.task_id = c.task_id and x.epoch = c.epoch)) as counts
    from c cross join lateral (
      select count(*) as deaths from death x where x.tenant = c.tenant and x.task_id = c.task_id and x.steps = c.steps) b),
d as (
  insert into death as x (tenant, task_id, epoch, worker, steps, step_id, reason)
  select k.tenant, k.task_id, k.epoch, k.owner, k.steps, k.current_step, r.reason
    from k join unnest($3::uuid[], $5::text[]) as r(owner, reason) on r.owner = k.owner
   where k.counts
  on conflict (tenant, task_id, epoch) do update
     set steps = excluded.steps, step_id = excluded.step_id, reason = excluded.reason, at = outlive.clock())
update task t
   set owner = $1, epoch = t.epoch + 1, due_at = null, mail_at = null, sweep_at = null
  from k
 where t.tenant = k.tenant and t.task_id = k.task_id and t.owner = k.owner
returning t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.codec, t.input, t.epoch, t.version, t.last_seq, t.published, t.published_at,
  t.inbox_head, t.applied, t.steps, t.run, t.run_from, t.waiting_for, t.reasons, t.current_step, t.code_version, t.parent,
  k.deaths + k.counts::int as deaths, k.owner as died;

-- name: alone
-- A task on probation begins to run alone: if its worker dies now, that counts. It counts as nothing yet. $1 me, $2 tenant, $3 task id, $4 epoch
insert into death (tenant, task_id, epoch, worker, steps, reason) values ($2, $3, $4, $1, -1, 'runs alone')
on conflict do nothing;

-- name: release
-- Tasks of dead workers whose kinds no living worker has: nobody owns them, and they are due for whoever comes. $1 the dead
update task t
   set owner = null, epoch = t.epoch + 1, due_at = outlive.clock(), sweep_at = outlive.clock(),
       mail_at = case when t.inbox_head > t.applied then outlive.clock() end
 where t.owner = any($1::uuid[])
   and not exists (select 1 from worker w where t.kind = any(w.kinds) and w.until > outlive.clock() and not w.fenced and not w.draining);

-- name: owned
-- What the table says is ours (a claim whose answer was lost is in here and not in memory), and which of it has mail. $1 me
select tenant, task_id, epoch, inbox_head from task where owner = $1;

-- name: reclaim
-- Take up tasks that are ours by the table and have no actor. $1 me, $2 tenants, $3 task ids
update task t
   set epoch = t.epoch + 1
  from unnest($2::text[], $3::text[]) as k(tenant, task_id)
 where t.tenant = k.tenant and t.task_id = k.task_id and t.owner = $1
returning t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.codec, t.input, t.epoch, t.version, t.last_seq, t.published, t.published_at,
  t.inbox_head, t.applied, t.steps, t.run, t.run_from, t.waiting_for, t.reasons, t.current_step, t.code_version, t.parent,
  (select count(*) from death x where x.tenant = t.tenant and x.task_id = t.task_id and x.steps = t.steps) as deaths,
  null::uuid as died;

-- name: parent
-- Whose child a task is. $1 tenant, $2 task id
select parent, parent_step from task where tenant = $1 and task_id = $2;

-- name: first_attempt
-- When an operation was first begun: from then on its remote may know the key. $1 tenant, $2 task id, $3 step id, $4 operation id
select least((select min(a.started_at) from attempt a where a.tenant = $1 and a.task_id = $2 and a.step_id = $3 and a.operation_id = $4),
             (select o.started_at from operation o
               where o.tenant = $1 and o.task_id = $2 and o.step_id = $3 and o.operation_id = $4 and o.status not in ('prepared', 'awaiting_approval')));

-- name: turned_out
-- An attempt has happened after all: note it where it was taken not to have, or where nobody finds out any more. Never fenced.
-- $1 tenant, $2 task id, $3 step id, $4 operation id, $5 attempt, $6 worker
with judged as (
  select t.kind, t.status, format('attempt %s of %s has happened after all', $5::int, o.name) ||
         case when o.attempt > $5 then ', and was taken not to have: it may have happened twice'
              when o.status = 'failed' then ', and was taken not to have'
              else ': the task ended without knowing' end as message
    from operation o join task t on t.tenant = o.tenant and t.task_id = o.task_id
   where o.tenant = $1 and o.task_id = $2 and o.step_id = $3 and o.operation_id = $4
     and (o.attempt > $5 or o.attempt = $5 and (o.status = 'failed' or o.status = 'unknown' and t.ended_at is not null))
), noted as (
  insert into doubt (tenant, task_id, step_id, operation_id, attempt, worker, message)
  select $1, $2, $3, $4, $5, $6::uuid, j.message from judged j on conflict do nothing returning message
), told as (
  insert into audit (tenant, task_id, who, what, detail)
  select $1, $2, 'worker ' || $6::uuid::text, 'turned out', format('step %s: %s', $3::text, n.message) from noted n
)
select j.kind, j.status, n.message from judged j, noted n;

-- name: doubt
-- $1 tenant, $2 task id, $3 step id, $4 operation id, $5 attempt, $6 worker, $7 message
insert into doubt (tenant, task_id, step_id, operation_id, attempt, worker, message)
values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing;

-- name: ledgers
-- What tasks did to the world, in the order begun. $1 tenants, $2 task ids
select o.tenant, o.task_id, o.step_id, o.operation_id, o.name, o.status, o.attempt, o.digest, o.epoch, o.worker, o.started_at,
       o.deadline, o.ended_at, o.note
  from unnest($1::text[], $2::text[]) as k(tenant, task_id) join operation o on o.tenant = k.tenant and o.task_id = k.task_id
 order by o.tenant, o.task_id, o.started_at, o.step_id, o.operation_id;

-- name: completed
-- Where the results of a task's effects are, those of earlier runs too. $1 tenant, $2 task id
select f.step_id, max(f.seq) as seq
  from fact f
 where f.tenant = $1 and f.task_id = $2 and f.type = 'step' and f.status = 'completed'
   and exists (select 1 from operation o where o.tenant = $1 and o.task_id = $2 and o.step_id = f.step_id)
 group by f.step_id;

-- name: effect
-- An operation's arguments, and the result of its step. $1 tenant, $2 task id, $3 step id, $4 operation id, $5 number of the fact (0: none)
select o.arguments, f.body
  from operation o left join fact f on f.tenant = o.tenant and f.task_id = o.task_id and f.seq = $5
 where o.tenant = $1 and o.task_id = $2 and o.step_id = $3 and o.operation_id = $4;

-- name: next_due
-- Seconds until the next task is due; null = none. $1 my kinds
select extract(epoch from min(due_at) - outlive.clock())::float8 from task where due_at is not null and kind = any($1);

-- name: load
-- All that a batch of resumed tasks needs, in one range scan each. $1 tenants, $2 task ids, $3 run_from, $4 applied, $5 published
with k as materialized (
  select k.i, k.tenant, k.task_id, k.run_from, k.applied, k.published
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) with ordinality as k(tenant, task_id, run_from, applied, published, i))
select k.i, 'f' as what, f.type as name, f.step_id, f.name as label, f.status, f.digest, f.seq as num, f.attempt::bigint as attempt, f.inbox_pos as pos,
       f.wait_until as at, f.codec, f.body, null::uuid as worker, f.arguments, f.item as note, null::timestamptz as deadline
  from k join fact f on f.tenant = k.tenant and f.task_id = k.task_id and f.seq > k.run_from
   and (f.type = 'plan' or (f.type in ('step', 'note') and f.step_id is not null))
union all
select k.i, 'o', o.operation_id, o.step_id, o.name, o.status, o.digest, o.epoch, o.attempt, null, o.started_at, o.codec, o.arguments, o.worker, null, o.note, o.deadline
  from k join operation o on o.tenant = k.tenant and o.task_id = k.task_id
union all
select k.i, 'a', a.operation_id, a.step_id, a.error_class, a.reason, null, a.attempt, null, null, a.wait_until, 0::smallint, null, a.worker, null, null, null
  from k join attempt a on a.tenant = k.tenant and a.task_id = k.task_id
union all
select k.i, 'm', y.verb, y.name, y.command_id, y.by, y.digest, y.pos, y.taken::int, null, y.received_at, y.codec, y.body, null, null, null, null
  from k join inbox y on y.tenant = k.tenant and y.task_id = k.task_id and y.pos is not null
 where y.pos > k.applied
    or (y.code = 'applied' and not y.taken and y.verb in ('signal', 'child', 'approve', 'reject', 'resolve', 'retry', 'skip', 'edit_plan', 'cancel'))
    or (y.code = 'applied' and y.taken and (y.verb in ('approve', 'reject', 'resolve') or (y.verb = 'signal' and y.name like 'answer-%')))
union all
select k.i, 'e', '', null, null, null, null, f.seq, null, null, null, 0::smallint, f.event, null, null, null, null
  from k join fact f on f.tenant = k.tenant and f.task_id = k.task_id and f.seq > k.published
order by 1, 2, 8;

-- name: mail
-- Inbox rows that owners have not seen. $1 tenants, $2 task ids, $3 applied
select k.i, y.verb as name, y.name as step_id, y.command_id as label, y.by as status, y.pos as num, y.received_at as at, y.codec, y.body
  from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as k(tenant, task_id, applied, i)
  join inbox y on y.tenant = k.tenant and y.task_id = k.task_id and y.pos > k.applied
 order by k.i, y.pos;
