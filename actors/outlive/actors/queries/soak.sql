-- What the soak judges by: the tables themselves, by nothing that the product reads with. One database belongs to one soak.

-- name: counts
select status, count(*) as n from outlive_store.task group by 1;

-- name: open
select exists (select from outlive_store.task where ended_at is null or published < last_seq);

-- name: totals
select (select count(*) from outlive_store.fact where type = 'step' and status = 'completed')::int as steps,
       (select count(*) from outlive_store.inbox)::int as commands, (select count(*) from outlive_store.fact)::int as events;

-- name: ends
select kind, status, count(*)::int as n from outlive_store.task group by 1, 2 order by 1, 2;
