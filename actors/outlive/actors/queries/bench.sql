-- What the bench counts, and the pool's table.

-- name: serving
select exists (select from outlive_store.worker where pid = $1 and until > outlive.clock());

-- name: completed
select count(*) from outlive_store.fact where tenant = $1 and task_id = any($2) and type = 'step' and status = 'completed';

-- name: marks
select body from outlive_store.fact where tenant = $1 and task_id = $2 and type = 'step' and status = 'completed' order by seq;

-- name: limit_table
create table if not exists outlive_store.bench_limit (task text not null, step int not null, state bytea not null, primary key (task, step));

-- name: limit
insert into outlive_store.bench_limit (task, step, state) values ($1, $2, $3) on conflict do nothing;

-- name: limit_drop
drop table outlive_store.bench_limit;
