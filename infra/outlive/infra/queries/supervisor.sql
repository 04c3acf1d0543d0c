-- What the supervisor of actors notes and reads.

-- name: deaths
-- Of a task since its last completed step. $1 tenant, $2 task id, $3 completed steps
select at, reason,
       case when step_id is not null then 'at step ' || step_id when steps = 0 then 'before its first step' else 'between two steps' end as place
  from death where tenant = $1 and task_id = $2 and steps = $3 order by epoch;

-- name: audit
-- Never fenced: this is how a fenced actor reports. $1 tenant, $2 task id, $3 who, $4 what, $5 detail
insert into audit (tenant, task_id, who, what, detail) values ($1, $2, $3, $4, $5);

-- name: register_kinds
-- What may be submitted. $1 names, $2 code versions, $3 input schemas, $4 titles, $5 whether people may change plans
insert into kind as k (name, code_version, input_schema, title, plans)
select * from unnest($1::text[], $2::text[], $3::jsonb[], $4::text[], $5::bool[])
on conflict (name) do update
   set code_version = excluded.code_version, input_schema = excluded.input_schema, title = excluded.title, plans = excluded.plans,
       registered_at = outlive.clock()
 where k.code_version <> excluded.code_version or k.input_schema <> excluded.input_schema or k.plans <> excluded.plans;
