-- Which migrations a database has seen. The table is made by the first of them that runs, not by a file.

-- name: exists
select to_regclass('outlive_store.migration');

-- name: applied
select number, name, checksum, applied_at from outlive_store.migration order by number;

-- name: prepare
create schema if not exists outlive_store;
create table if not exists outlive_store.migration (
  number integer primary key,
  name text not null,
  checksum bytea not null,
  applied_at timestamptz not null default clock_timestamp()
);

-- name: record
insert into outlive_store.migration (number, name, checksum) values ($1, $2, $3);
