-- The read side: what the api answers from. Every statement goes by a primary key, by task_list (tenant, created_at
-- desc, task_id) or by one of the partial indexes; none locks, none writes.

-- name: records
-- Task records by id, in the order asked. $1 tenant, $2 ids, $3 with input, $4 with result.
select t.task_id, t.kind, t.status, t.cancelling, t.compensating, t.reasons, t.current_step, t.plan_total, t.plan_version, t.model_version, t.prompt_version, t.labels, t.priority, t.parent, t.owner, t.epoch,
       t.last_seq, t.steps, t.waiting_for, t.wait_until, t.code_version, t.schema_version, t.created_at, t.updated_at,
       case when $3::boolean then t.input end as input, case when $3::boolean then hidden(t.kind) end as hidden,
       array(select f.name from fact f
              where f.tenant = t.tenant and f.task_id = t.task_id and f.seq > t.run_from and f.type = 'step' and f.status = 'completed'
              order by f.seq desc limit 5) as last,
       coalesce(
         (select o.name from operation o where o.tenant = t.tenant and o.task_id = t.task_id and o.step_id = t.current_step
           order by o.operation_id desc limit 1),
         (select f.name from fact f where f.tenant = t.tenant and f.task_id = t.task_id and f.seq > t.last_seq - 20 and f.step_id = t.current_step
           order by f.seq desc limit 1)) as step_name,
       case when t.status = 'failed' or (t.status = 'succeeded' and $4::boolean) then
         (select f.body from fact f where f.tenant = t.tenant and f.task_id = t.task_id and f.type = 'status'
           order by f.seq desc limit 1) end as body
  from unnest($2::text[]) with ordinality as k(task_id, i)
  join task t on t.tenant = $1 and t.task_id = k.task_id
 order by k.i;

-- name: plan
-- The plans of a task's run, newest first, and by item how its steps stand: whether one of them is open, how the one ended that was heard of
-- last; and at which item the function is. A plan has a body, an item a name. $1 tenant, $2 task id, $3 most plans
with f as materialized (
  select f.seq, f.type, f.step_id, f.name, f.status, f.item, f.body is null as empty
    from task t join fact f on f.tenant = t.tenant and f.task_id = t.task_id and f.seq > t.run_from
   where t.tenant = $1 and t.task_id = $2 and (f.type = 'plan' or f.item is not null)),
s as (
  select distinct on (f.step_id) f.seq, f.item,
         case when f.status = 'unknown' and f.empty then 'started' else f.status end as status
    from f where f.item is not null
     and (f.type = 'step' or f.name = 'phase')
   order by f.step_id, f.seq desc)
(select p.seq, null as item, null as status, false as open, p.body
   from fact p where p.tenant = $1 and p.task_id = $2 and p.seq in (select f.seq from f where f.type = 'plan' order by f.seq desc limit $3))
union all
select max(s.seq), s.item, (array_agg(s.status order by s.seq desc))[1], bool_or(s.status in ('started', 'waiting')), null
  from s group by s.item
union all
(select f.seq, f.item, 'current', false, null from f where f.name = 'phase' and f.type = 'note' order by f.seq desc limit 1)
order by 1;

-- name: spending
-- What a task's requests to models have cost, and how many recorded answers its resumes used instead of asking again. $1 tenant, $2 task id
select b.tokens as token_limit, b.money as money_limit, b.steps as step_limit, b.seconds as second_limit, b.used, b.lent,
       s.requests, s.lost, s.unpriced,
       (select count(*)
          from fact r join fact f on f.tenant = r.tenant and f.task_id = r.task_id and f.seq < r.seq and f.type = 'step' and f.status = 'completed'
         where r.tenant = $1 and r.task_id = $2 and r.type = 'resumed'
           and exists (select 1 from spend x where x.tenant = $1 and x.task_id = $2 and x.step_id = f.step_id)) as kept
  from budget b cross join lateral (
    select count(*) filter (where amount[3] > 0) as requests, count(*) filter (where not settled) as lost, count(*) filter (where not priced) as unpriced
      from spend where tenant = $1 and task_id = $2) s
 where b.tenant = $1 and b.task_id = $2;

-- name: page
-- Ids of a tenant's tasks, newest first, after (created_at $2, task_id $3). $4 statuses, $5 kind, $6 parent, $7 labels; empty or null = any.
select t.task_id, t.created_at
  from task t
 where t.tenant = $1 and t.created_at > '-infinity'  -- the index's predicate
   and t.created_at <= coalesce($2::timestamptz, 'infinity') and (t.created_at < coalesce($2::timestamptz, 'infinity') or t.task_id > $3)
   and (cardinality($4::text[]) = 0 or t.status = any($4::text[]))
   and ($5::text is null or t.kind = $5) and ($6::text is null or t.parent = $6) and t.labels @> $7::jsonb
 order by t.created_at desc, t.task_id limit $8;

-- name: events
-- Consecutive events from $3 on: as many as fit into $4 bytes, at most $5; a first one that does not fit comes without its bytes.
select t.last_seq, t.status, p.seq, case when p.bytes <= $4 then p.event end as event
  from task t
  left join lateral (
    select f.seq, f.event, row_number() over seqs as n, sum(octet_length(f.event) + 1) over seqs as bytes
      from fact f where f.tenant = t.tenant and f.task_id = t.task_id and f.seq >= $3
    window seqs as (order by f.seq) order by f.seq limit $5) p on p.bytes <= $4 or p.n = 1
 where t.tenant = $1 and t.task_id = $2
 order by p.seq;

-- name: checkpoint
-- The head of a task's checkpoint: its row, and the operation in flight (that of the current step first), or whose next attempt is waited for.
select t.kind, t.input, hidden(t.kind) as hidden, t.version, t.last_seq, t.steps, t.current_step, t.waiting_for, t.wait_until, t.schema_version, t.updated_at,
       t.plan_version, t.model_version, t.prompt_version,
       o.step_id, o.operation_id, o.name, o.status, o.attempt, o.arguments
  from task t
  left join lateral (
    select o.step_id, o.operation_id, o.name, o.status, o.attempt, o.arguments
      from operation o where o.tenant = t.tenant and o.task_id = t.task_id and (o.ended_at is null or (o.step_id = t.current_step and t.waiting_for is not null and o.status <> 'succeeded'))
     order by o.step_id is distinct from t.current_step, o.started_at desc limit 1) o on true
 where t.tenant = $1 and t.task_id = $2;

-- name: steps
-- Steps of the task's run that are done (an unknown one with a body was given up by the function), after number $3: as many as fit
-- into $4 bytes, at most $6. A result above $5 bytes is left out.
select p.seq, p.step_id, p.name, p.status, p.digest, p.size, case when p.size <= $5::bigint then p.body end as body
  from (select f.seq, f.step_id, f.name, f.status, f.digest, f.body, octet_length(f.body) as size, row_number() over seqs as n,
               sum(case when octet_length(f.body) <= $5::bigint then octet_length(f.body) else 0 end + length(f.name) * 4 + 300) over seqs as bytes
          from task t
          join fact f on f.tenant = t.tenant and f.task_id = t.task_id and f.seq > greatest($3::bigint, t.run_from)
         where t.tenant = $1 and t.task_id = $2 and f.type = 'step'
           and (f.status in ('completed', 'skipped', 'failed') or (f.status = 'unknown' and f.body is not null))
        window seqs as (order by f.seq) order by f.seq limit $6) p
 where p.bytes <= $4 or p.n = 1
 order by p.seq;

-- name: operations
-- The ledger after (step $3, operation $4): as many as fit into $5 bytes, at most $6.
select p.step_id, p.operation_id, p.name, p.status, p.attempt, p.epoch, p.digest, case when p.bytes <= $5 then p.arguments end as arguments,
       p.started_at, p.ended_at, p.note,
       (select string_agg(d.message, '; ' order by d.at) from doubt d
         where d.tenant = $1 and d.task_id = $2 and d.step_id = p.step_id and d.operation_id = p.operation_id) as doubt,
       p.status = 'succeeded' and not exists (
         select 1 from operation n
          where n.tenant = $1 and n.task_id = $2 and n.step_id = p.step_id
            and (length(n.operation_id), n.operation_id) > (length(p.operation_id), p.operation_id)) as answers  -- its result is the step's
  from (select o.step_id, o.operation_id, o.name, o.status, o.attempt, o.epoch, o.digest, o.arguments, o.started_at, o.ended_at, o.note,
               row_number() over ids as n, sum(octet_length(o.arguments) + length(o.name) * 4 + coalesce(length(o.note), 0) * 4 + 800) over ids as bytes
          from operation o
         where o.tenant = $1 and o.task_id = $2 and (o.step_id, o.operation_id) > ($3, $4)
        window ids as (order by o.step_id, o.operation_id) order by o.step_id, o.operation_id limit $6) p
 where p.bytes <= $5 or p.n = 1
 order by p.step_id, p.operation_id;

-- name: results
-- What steps $3 returned, as far as they are done: up to $4 bytes each, $5 in all.
select p.step_id, p.body
  from (select f.step_id, f.body, sum(octet_length(f.body)) over (order by f.seq) as bytes
          from fact f
         where f.tenant = $1 and f.task_id = $2 and f.type = 'step' and f.status = 'completed' and f.step_id = any($3::text[])
           and octet_length(f.body) <= $4::bigint) p
 where p.bytes <= $5::bigint;

-- name: attempts
-- Attempts after (step $3, operation $4) up to and with ($5, $6); null = to the end.
select a.step_id, a.operation_id, a.attempt, a.worker, a.started_at, a.ended_at, a.error_class, a.reason, a.wait_until
  from outlive.attempt a
 where a.tenant = $1 and a.task_id = $2 and (a.step_id, a.operation_id) > ($3, $4)
   and ($5::text is null or (a.step_id, a.operation_id) <= ($5, $6::text))
 order by a.step_id, a.operation_id, a.attempt limit 2000;

-- name: words
-- What people said about operations of these steps, and was applied. $3 step ids; $4 also of steps without any: read-only ones
select y.name as step_id, y.verb, y.by, y.claimed, y.decided_at, y.body
  from inbox y
 where y.tenant = $1 and y.task_id = $2 and y.pos is not null and y.verb in ('approve', 'reject', 'resolve', 'retry') and y.code = 'applied'
   and (y.name = any($3::text[])
        or ($4::boolean and y.verb = 'retry' and y.name is not null
            and not exists (select 1 from operation o where o.tenant = $1 and o.task_id = $2 and o.step_id = y.name)))
 order by y.pos limit 2000;

-- name: piece
-- A piece of one fact: $4 event, else its body; $5 bytes skipped, $6 bytes at most.
select octet_length(p.part) as total, substring(p.part from $5::int + 1 for $6::int) as data
  from (select case when $4::boolean then f.event else f.body end as part
          from fact f where f.tenant = $1 and f.task_id = $2 and f.seq = $3) p;

-- name: command_piece
-- A command of task $2, id $3, as it came.
select i.verb, i.body
  from inbox i where i.tenant = $1 and i.command_id = $3 and i.task_id = $2;

-- name: final
-- The number of the fact that holds a succeeded task's result.
select f.seq from task t join fact f on f.tenant = t.tenant and f.task_id = t.task_id
 where t.tenant = $1 and t.task_id = $2 and t.status = 'succeeded' and f.type = 'status'
 order by f.seq desc limit 1;

-- name: input
select t.input, hidden(t.kind) as hidden from task t where t.tenant = $1 and t.task_id = $2;

-- name: hidden
-- What is not given out of the inputs of kinds $1.
select k.name, hidden(k.name) as hidden from kind k where k.name = any($1::text[]);

-- name: command
select i.command_id, i.task_id, i.pos, i.verb, i.by, i.digest, i.received_at, i.code, i.message, i.decided_at
  from inbox i where i.tenant = $1 and i.command_id = $2;

-- name: commands
-- A task's commands after (place $3, id $4), those without a place first: as many as fit into $5 bytes, at most $7. A body above $6 is left out.
select p.command_id, p.task_id, p.pos, p.verb, p.by, p.digest, p.received_at, p.code, p.message, p.decided_at,
       case when p.size <= $6::bigint then p.body end as body
  from (select i.*, octet_length(i.body) as size, row_number() over places as n,
               sum(case when octet_length(i.body) <= $6::bigint then octet_length(i.body) else 0 end
                   + coalesce(length(i.message), 0) * 4 + 1500) over places as bytes
          from ((select * from inbox a where a.tenant = $1 and a.task_id = $2 and a.pos is null and $3::bigint = 0 and a.command_id > $4
                  order by a.command_id limit $7)
                union all
                (select * from inbox b where b.tenant = $1 and b.task_id = $2 and b.pos is not null and b.pos > $3::bigint
                  order by b.pos limit $7)) i
        window places as (order by coalesce(i.pos, 0), i.command_id) order by coalesce(i.pos, 0), i.command_id limit $7) p
 where p.bytes <= $5 or p.n = 1
 order by coalesce(p.pos, 0), p.command_id;

-- name: audit
-- What was done to a task, after id $3: as many as fit into $4 bytes, at most $5.
select p.id, p.at, p.who, p.what, p.before, p.after, p.detail
  from (select a.*, row_number() over ids as n, sum((coalesce(length(a.detail), 0) + coalesce(length(a.before), 0) + coalesce(length(a.after), 0) + length(a.who) + length(a.what)) * 6 + 300) over ids as bytes
          from audit a where a.tenant = $1 and a.task_id = $2 and a.id > $3
        window ids as (order by a.id) order by a.id limit $5) p
 where p.bytes <= $4 or p.n = 1
 order by p.id;

-- name: recent
-- Tasks whose tools are counted, newest first, after (created_at $2, task_id $3): created within $4 seconds, of kind $5; null = any.
select t.task_id, t.created_at
  from task t
 where t.tenant = $1 and t.created_at > '-infinity'  -- the index's predicate
   and t.created_at >= coalesce((select outlive.clock()) - make_interval(secs => $4::double precision), '-infinity')
   and t.created_at <= coalesce($2::timestamptz, 'infinity') and (t.created_at < coalesce($2::timestamptz, 'infinity') or t.task_id > $3)
   and ($5::text is null or t.kind = $5)
 order by t.created_at desc, t.task_id limit $6;

-- name: stats
-- How the tools fared in tasks $2. A step's last word is that of its last fact, and of its operation where it is an effect; waits for time,
-- signals and children are steps too, and no tools.
with s as materialized (
  select x.task_id, x.step_id, x.name, x.attempts,
         case when x.operation in ('awaiting_approval', 'started') then 'open'
              when x.status in ('completed', 'skipped') then 'succeeded'
              when x.status = 'waiting' then 'open'
              when x.operation = 'unknown' then 'unknown'
              when x.status = 'failed' or x.operation = 'failed' then 'failed'
              when x.status = 'unknown' then 'unknown'
              else 'open' end as outcome
    from (select k.task_id, y.step_id, max(y.name) as name,
                 greatest(max(y.attempt) filter (where y.operation is null), sum(y.attempt) filter (where y.operation is not null)) as attempts,
                 (array_agg(y.operation order by length(y.number) desc, y.number desc) filter (where y.operation is not null))[1] as operation,
                 (array_agg(y.status order by y.seq desc) filter (where y.seq is not null))[1] as status
            from unnest($2::text[]) as k(task_id)
           cross join lateral (
                 select f.step_id, f.name, f.attempt::integer, f.seq, f.status, null as operation, null as number
                   from fact f
                  where f.tenant = $1 and f.task_id = k.task_id and f.type = 'step' and f.name not like '% %'
                    and (f.took is not null or f.name not in ('sleep', 'now', 'ask', 'edit-plan'))
                  union all
                 select o.step_id, o.name, o.attempt - (o.status in ('prepared', 'awaiting_approval'))::integer, null, null, o.status,
                        o.operation_id
                   from operation o where o.tenant = $1 and o.task_id = k.task_id) y
           group by k.task_id, y.step_id) x),
e as (
  select b.name, json_object_agg(b.error_class, b.n)::text as errors, sum(b.waited) as waited, max(b.longest) as longest
    from (select s.name, a.error_class, count(*) as n, sum(a.pause) as waited, max(a.pause) as longest
            from s
           cross join lateral (
                 select coalesce(a.error_class, 'timeout') as error_class,
                        greatest(extract(epoch from a.wait_until - a.ended_at), 0)::double precision as pause
                   from attempt a where a.tenant = $1 and a.task_id = s.task_id and a.step_id = s.step_id) a
           group by s.name, a.error_class) b
   group by b.name)
select s.name, count(*) as calls, count(*) filter (where s.outcome = 'succeeded') as succeeded,
       count(*) filter (where s.outcome = 'failed') as failed, count(*) filter (where s.outcome = 'unknown') as unknown,
       count(*) filter (where s.outcome = 'open') as open, coalesce(sum(s.attempts), 0)::bigint as attempts,
       coalesce(max(e.errors), '{}') as errors, coalesce(max(e.waited), 0) as waited, coalesce(max(e.longest), 0) as longest_wait
  from s left join e on e.name = s.name
 group by s.name order by s.name;

-- name: why
-- What besides its record explains a task: when it is wanted, who holds it, who could run it, since when it is as it is.
select (select outlive.clock()) as now, t.due_at, t.mail_at, t.tell_at, t.ended_at,
       w.host, w.pid, w.until, w.draining, w.fenced,
       (select count(*) from worker a where a.until > (select outlive.clock()) and not a.fenced) as alive,
       (select count(*) from worker a where a.until > (select outlive.clock()) and not a.fenced and not a.draining and t.kind = any(a.kinds)) as able,
       (select coalesce(sum(greatest(a.slots - a.busy, 0)), 0) from worker a
         where a.until > (select outlive.clock()) and not a.fenced and not a.draining and t.kind = any(a.kinds)) as free,
       (select count(*) from death d where d.tenant = t.tenant and d.task_id = t.task_id and d.steps = t.steps) as deaths,
       f.at as status_at, f.message, o.name, o.step_id, o.status, o.attempt, o.started_at
  from task t
  left join worker w on w.incarnation = t.owner
  left join lateral (
    select f.at, convert_from(f.event, 'UTF8')::json ->> 'message' as message from fact f
     where f.tenant = t.tenant and f.task_id = t.task_id and f.type = 'status' order by f.seq desc limit 1) f on true
  left join lateral (
    select o.name, o.step_id, o.status, o.attempt, o.started_at from operation o
     where o.tenant = t.tenant and o.task_id = t.task_id and o.ended_at is null
     order by o.step_id is distinct from t.current_step, o.started_at desc limit 1) o on true
 where t.tenant = $1 and t.task_id = $2;

-- name: kinds
select k.name, k.code_version, k.title, k.registered_at, k.input_schema,
       (select count(*) from worker w where w.until > (select outlive.clock()) and not w.fenced and k.name = any(w.kinds)) as workers
  from kind k order by k.name;

-- name: workers
select w.incarnation, w.host, w.pid, w.version, w.kinds, w.slots, w.busy, w.draining, w.started_at, w.until, w.health
  from worker w where w.until > (select outlive.clock()) and not w.fenced
 order by w.started_at;

-- name: lags
-- $1 the command stream.
select (select outlive.clock()) as at, c.owner, c.until, c.seq,
       (select min(t.due_at) from task t where t.due_at is not null and t.due_at <= (select outlive.clock())) as due_at,
       (select min(t.mail_at) from task t where t.mail_at is not null and t.mail_at <= (select outlive.clock())) as mail_at,
       (select min(t.sweep_at) from task t where t.sweep_at is not null and t.sweep_at <= (select outlive.clock())) as sweep_at
  from (select) as one left join cursor c on c.stream = $1;

-- name: dead_letters
-- What is not resolved, after id $2.
select d.id, d.at, d.subject, d.stream_seq, d.reason, octet_length(d.body) as size
  from dead_letter d where d.tenant = $1 and d.id > $2 and d.resolved_at is null
 order by d.id limit $3;
