-- The relay: how far a task's events are in the stream. `published` is no fact of the task: it never moves `version`.

-- name: mark
-- Of tasks that were left. $1 tenants, $2 task ids, $3 epochs, $4 published, $5 published_at. Fenced by the epoch alone (the owner is
-- gone), only grows, and ends the sweep when nothing is left to publish. Rows are locked in key order, or several writers deadlock.
with b as materialized (
  select u.tenant, u.task_id, u.epoch, u.published, u.published_at
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) as u(tenant, task_id, epoch, published, published_at)),
l as materialized (
  select t.tenant, t.task_id
    from task t join b on t.tenant = b.tenant and t.task_id = b.task_id
   where t.epoch = b.epoch and t.published <= b.published
   order by t.tenant, t.task_id
     for no key update of t)
update task t
   set published = b.published,
       published_at = b.published_at,
       sweep_at = case when b.published < t.last_seq then t.sweep_at end
  from l join b on b.tenant = l.tenant and b.task_id = l.task_id
 where t.tenant = b.tenant and t.task_id = b.task_id and t.epoch = b.epoch and t.published <= b.published;

-- name: rewind
-- The stream was found shorter than the mark. $1 tenant, $2 task, $3 epoch, $4 published, $5 published_at
update task
   set published = $4, published_at = $5
 where tenant = $1 and task_id = $2 and epoch = $3 and published > $4;

-- name: facts
-- Events after $3, up to $4, at most $5
select seq, event
  from fact
 where tenant = $1 and task_id = $2 and seq > $3 and seq <= $4
 order by seq
 limit $5;

-- name: due
-- Tasks that were left with events that may not be in the stream, at most $1; for a while they are this worker's to publish.
with d as materialized (
  select tenant, task_id
    from task
   where sweep_at <= (select outlive.clock()) and owner is null
   order by sweep_at
   limit $1
     for no key update skip locked)
update task t
   set sweep_at = (select outlive.clock()) + interval '5 seconds'
  from d
 where t.tenant = d.tenant and t.task_id = d.task_id
returning t.tenant, t.task_id, t.kind, t.epoch, t.version, t.last_seq, t.published, t.published_at, t.inbox_head, t.applied, t.steps;
