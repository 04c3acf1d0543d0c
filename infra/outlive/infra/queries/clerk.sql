-- The clerk: commands to tasks that have no actor, whatever their kind or version.

-- name: take
-- Lock tasks with mail and nobody to read it, and become their owner for this transaction. $1 me, $2 at most
with c as materialized (
  select tenant, task_id
    from task
   where mail_at <= (select outlive.clock()) and owner is null
   order by mail_at
   limit $2
     for no key update skip locked)
update task t
   set owner = $1, epoch = t.epoch + 1
  from c
 where t.tenant = c.tenant and t.task_id = c.task_id
returning t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.codec, t.input, t.epoch, t.version, t.last_seq, t.published, t.published_at,
  t.inbox_head, t.applied, t.steps, t.run, t.run_from, t.waiting_for, t.reasons, t.current_step, t.code_version, t.parent, 0::bigint as deaths,
  null::uuid as died, t.due_at, t.ended_at, coalesce(t.plan_version, 0) as plan_version,
  exists (select 1 from kind k where k.name = t.kind and k.plans) as plans;

-- name: stale_mail
-- Signals wait with a task that is due, for the worker that will run it. When none has come for a second, the clerk reads them.
update task t
   set mail_at = outlive.clock()
  from (select tenant, task_id from task
         where due_at <= (select outlive.clock()) - interval '1 second' and inbox_head > applied and mail_at is null and owner is null
         limit 200 for no key update skip locked) c
 where t.tenant = c.tenant and t.task_id = c.task_id;

-- name: about
-- How the steps stand that letters are about, and who answered last what was asked about them. A result is for people: if it is short.
-- $1 tenants, $2 task ids, $3 step ids
select k.tenant, k.task_id, k.step_id, s.status, s.name, s.result, o.operation_id, y.verb, y.by, y.decided_at
  from unnest($1::text[], $2::text[], $3::text[]) as k(tenant, task_id, step_id)
  join task t on t.tenant = k.tenant and t.task_id = k.task_id
  left join lateral (
    select f.status, f.name, case when f.status = 'completed' and octet_length(f.body) <= 500 then f.body end as result
      from fact f
     where f.tenant = t.tenant and f.task_id = t.task_id and f.seq > t.run_from and f.type = 'step' and f.step_id = k.step_id
     order by f.seq desc limit 1) s on true
  left join lateral (
    select o.operation_id from operation o
     where o.tenant = t.tenant and o.task_id = t.task_id and o.step_id = k.step_id
     order by length(o.operation_id) desc, o.operation_id desc limit 1) o on true
  left join lateral (
    select y.verb, y.by, y.decided_at from inbox y
     where y.tenant = t.tenant and y.task_id = t.task_id and y.pos is not null and y.name = k.step_id
       and (y.verb in ('approve', 'reject', 'resolve') or (y.verb = 'signal' and y.name like 'answer-%')) and y.code = 'applied'
     order by y.pos desc limit 1) y on true;

-- name: tell_lock
-- Tasks whose relatives are to be told, with those relatives, locked in key order (the order of every other writer). $1 at most.
-- Lateral: a join by hash would read all tasks.
with c as materialized (
  select tenant, task_id, parent from task where tell_at <= (select outlive.clock()) order by tell_at limit $1),
k as materialized (
  select tenant, task_id from c
  union
  select tenant, parent from c where parent is not null
  union
  select c.tenant, h.task_id
    from c cross join lateral (select t.task_id from task t where t.tenant = c.tenant and t.parent = c.task_id offset 0) h
   order by 1, 2)
select t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.parent, t.parent_step, t.owner, t.last_seq, t.telling
  from k cross join lateral (
    select t.tenant, t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.parent, t.parent_step, t.owner, t.last_seq, t.tell_at is not null as telling
      from task t
     where t.tenant = k.tenant and t.task_id = k.task_id
       for no key update) t;

-- name: tell
-- Put rows into inboxes, once each. $1 tenants, $2 task ids, $3 command ids, $4 verbs, $5 names, $6 bodies, $7 digests, $8 who
with m as materialized (
  select m.tenant, m.task_id, m.command_id, m.verb, m.name, m.body, m.digest, m.by, m.i
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bytea[], $8::text[]) with ordinality
      as m(tenant, task_id, command_id, verb, name, body, digest, by, i)
   where not exists (select 1 from inbox y where y.tenant = m.tenant and y.command_id = m.command_id)),
r as materialized (
  select m.tenant, m.task_id, m.command_id, m.verb, m.name, m.body, m.digest, m.by,
         t.inbox_head + row_number() over (partition by m.tenant, m.task_id order by m.i) as pos
    from m join task t on t.tenant = m.tenant and t.task_id = m.task_id),
x as (
  insert into inbox (tenant, task_id, command_id, pos, verb, name, by, claimed, digest, body)
  select tenant, task_id, command_id, pos, verb, name, by, false, digest, body from r)
update task t
   set inbox_head = h.head,
       due_at = case when t.owner is null and h.verb = 'child' and t.status = 'running' then outlive.clock() else t.due_at end,
       mail_at = case when t.owner is null and not (h.verb = 'child' and t.status = 'running') then outlive.clock() else t.mail_at end
  from (select tenant, task_id, max(pos) as head, min(verb) as verb from r group by 1, 2) h
 where t.tenant = h.tenant and t.task_id = h.task_id
returning t.tenant, t.task_id, t.owner;

-- name: told
-- $1 tenants, $2 task ids
update task t set tell_at = null from unnest($1::text[], $2::text[]) as k(tenant, task_id) where t.tenant = k.tenant and t.task_id = k.task_id;

-- name: results
-- The body of the last fact of ended children. $1 tenants, $2 task ids, $3 last numbers
select f.tenant, f.task_id, f.body
  from unnest($1::text[], $2::text[], $3::bigint[]) as k(tenant, task_id, seq)
  join fact f on f.tenant = k.tenant and f.task_id = k.task_id and f.seq = k.seq;

-- name: forgive
-- Let out of quarantine: earlier deaths count no longer. $1 tenants, $2 task ids
update death x set steps = -1 from unnest($1::text[], $2::text[]) as k(tenant, task_id) where x.tenant = k.tenant and x.task_id = k.task_id;
