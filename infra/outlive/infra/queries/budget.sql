-- Budgets of task trees. A child locks its own row, then its parent's, and so on up: no two can wait for each other.

-- name: lineage
-- A task and its ancestors, nearest first, with what their submits asked for. $1 tenant, $2 task id
with recursive up as (
  select t.task_id, t.parent, t.input, 0 as depth from task t where t.tenant = $1 and t.task_id = $2
  union all
  select t.task_id, t.parent, t.input, up.depth + 1 from up join task t on t.tenant = $1 and t.task_id = up.parent)
select up.task_id, up.input, b.task_id is not null as has, b.money from up left join budget b on b.tenant = $1 and b.task_id = up.task_id
 order by up.depth;

-- name: open
-- $1 tenant, $2 task id, $3 parent, $4 tokens, $5 money, $6 steps, $7 seconds
insert into budget (tenant, task_id, parent, tokens, money, steps, seconds) values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing;

-- name: lock
-- $1 tenant, $2 task id
select task_id, parent, tokens, money, steps, drawn, used, lent from budget where tenant = $1 and task_id = $2 for update;

-- name: late
-- Whose time is over, of a task and those that it draws from. $1 tenant, $2 task id
with recursive up as (
  select b.task_id, b.parent, b.seconds, b.started_at from budget b where b.tenant = $1 and b.task_id = $2
  union all
  select b.task_id, b.parent, b.seconds, b.started_at from up join budget b on b.tenant = $1 and b.task_id = up.parent),
u as (select task_id, seconds, extract(epoch from outlive.clock() - started_at)::float8 as elapsed from up where seconds is not null)
select task_id, seconds, elapsed from u where elapsed > seconds limit 1;

-- name: reserve
-- Note a request; no row: it is noted already. $1 tenant, $2 task id, $3 step, $4 attempt, $5 model, $6 its price is known, $7 amount
insert into spend (tenant, task_id, step_id, attempt, model, priced, amount) values ($1, $2, $3, $4, $5, $6, $7)
on conflict do nothing returning true;

-- name: write
-- $1 tenant, $2 task id, $3 drawn, $4 used, $5 lent
update budget set drawn = $3, used = $4, lent = $5 where tenant = $1 and task_id = $2;

-- name: settle
-- What a request really cost: once. $1 tenant, $2 task id, $3 step, $4 attempt, $5 amount
with s as (
  update spend x set amount = $5, settled = true
    from (select amount from spend where tenant = $1 and task_id = $2 and step_id = $3 and attempt = $4 and not settled for update) old
   where x.tenant = $1 and x.task_id = $2 and x.step_id = $3 and x.attempt = $4
  returning old.amount as reserved)
update budget b
   set used = array[b.used[1] - s.reserved[1] + $5[1], b.used[2] - s.reserved[2] + $5[2], b.used[3] - s.reserved[3] + $5[3]]
  from s where b.tenant = $1 and b.task_id = $2;

-- name: unsettled
-- $1 tenant, $2 task id
select step_id, attempt from spend where tenant = $1 and task_id = $2 and not settled;

-- name: ended_children
-- Children that have ended and may hold more than they used: it comes back. $1 tenant, $2 task id
select b.task_id, b.parent, b.tokens, b.money, b.steps, b.drawn, b.used, b.lent
  from budget b join task t on t.tenant = b.tenant and t.task_id = b.task_id
 where b.tenant = $1 and b.parent = $2 and t.status in ('succeeded', 'failed', 'cancelled')
   and (b.drawn <> b.used or b.lent <> '{0,0,0}')  -- what children of its own did not use may come back, too
   for update of b skip locked;

-- name: raise
-- Raise the limits of a task and of those it draws from, where they are smaller; locked as above. $1 tenant, $2 task id, $3 tokens, $4 money,
-- $5 steps, $6 seconds
with recursive up as (
  select b.task_id, b.parent, 0 as height from budget b where b.tenant = $1 and b.task_id = $2
  union all
  select b.task_id, b.parent, up.height + 1 from up join budget b on b.tenant = $1 and b.task_id = up.parent),
locked as materialized (
  select b.task_id from up join budget b on b.tenant = $1 and b.task_id = up.task_id order by up.height for update of b)
update budget b
   set tokens = greatest(b.tokens, case when b.tokens is not null then $3::bigint end),
       money = greatest(b.money, case when b.money is not null then $4::bigint end),
       steps = greatest(b.steps, case when b.steps is not null then $5::bigint end),
       seconds = greatest(b.seconds, case when b.seconds is not null then $6::float8 end)
  from locked where b.tenant = $1 and b.task_id = locked.task_id;
