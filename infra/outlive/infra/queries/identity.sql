-- Who makes an action that has a name of its own (`unique=`). One row a name; its lock decides between workers.

-- name: claim
-- Take a name that nobody has, or that this step has already; no row: another step has it, or the task is not ours any more.
-- $1 me, $2 tenant, $3 task id, $4 epoch, $5 tool, $6 scope, $7 name, $8 step, $9 operation, $10 digest, $11 last number given
insert into identity as y (tenant, tool, scope, name, task_id, step_id, operation_id, digest, since)
select t.tenant, $5::text, $6::text, $7::text, t.task_id, $8::text, $9::text, $10::bytea, $11::bigint
  from task t
 where t.tenant = $2 and t.task_id = $3 and t.owner = $1 and t.epoch = $4::bigint
   for share
on conflict (tenant, tool, scope, name) do update
   set operation_id = excluded.operation_id, digest = excluded.digest, since = excluded.since
 where y.task_id = excluded.task_id and y.step_id = excluded.step_id
returning true;

-- name: lock
-- $1 tenant, $2 tool, $3 scope, $4 name
select task_id, step_id, operation_id, digest, since from identity where tenant = $1 and tool = $2 and scope = $3 and name = $4 for update;

-- name: holder
-- How far the step is that has a name, and what undoes it; read after the lock.
-- $1 tenant, $2 task id, $3 step, $4 operation, $5 only facts above this number, $6 the step that undoes it
select t.status as task, t.compensating, o.status as operation, u.status as undo, o.arguments, f.status as step, f.body, f.at,
       (select outlive.clock()) as now
  from task t
  left join operation o on o.tenant = t.tenant and o.task_id = t.task_id and o.step_id = $3 and o.operation_id = $4
  left join lateral (
    select u.status from operation u
     where u.tenant = t.tenant and u.task_id = t.task_id and u.step_id = $6
     order by length(u.operation_id) desc, u.operation_id desc limit 1) u on true
  left join lateral (
    select f.status, f.body, f.at from fact f
     where f.tenant = t.tenant and f.task_id = t.task_id and f.seq > $5::bigint and f.type = 'step' and f.step_id = $3
       and (f.status in ('completed', 'failed') or (f.status = 'unknown' and f.body is not null))
     order by f.seq limit 1) f on true
 where t.tenant = $1 and t.task_id = $2;

-- name: take
-- Take a name over from a step that did not send, and will not. $1 to $11 as for claim
update identity y
   set task_id = t.task_id, step_id = $8::text, operation_id = $9::text, digest = $10::bytea, since = $11::bigint, claimed_at = outlive.clock()
  from (select tenant, task_id from task where tenant = $2 and task_id = $3 and owner = $1 and epoch = $4::bigint for share) t
 where y.tenant = t.tenant and y.tool = $5 and y.scope = $6 and y.name = $7
returning true;
