-- Virtual time for tests: outlive.clock() is the true time plus an offset from a table.

-- name: exclude
-- Nobody writes or renews a lease meanwhile: one computed before the jump would be committed after it, and be over. Nor does anybody hold
-- a row that they are going to write (the ingester's `look`): they would wait for this lock, and the jump for their row.
lock table outlive_store.worker, outlive_store.cursor in exclusive mode

-- name: table
-- It stays when the true clock is back: to drop it would wait for whoever just reads it.
create table if not exists outlive_store.virtual_time (one boolean primary key default true check (one), shift interval not null)

-- name: start
insert into outlive_store.virtual_time (shift) values ('0') on conflict do nothing

-- name: install
create or replace function outlive.clock() returns timestamptz language sql stable parallel safe as
  'select clock_timestamp() + shift from outlive_store.virtual_time'

-- name: advance
-- $1 seconds
update outlive_store.virtual_time set shift = shift + make_interval(secs => $1)

-- name: move_workers
-- Leases keep what they had left: a jump of time is no death. $1 seconds
update outlive_store.worker set until = until + make_interval(secs => $1)

-- name: move_cursors
update outlive_store.cursor set until = until + make_interval(secs => $1) where until is not null

-- name: now
select outlive.clock()

-- name: shift
select extract(epoch from shift)::float8 from outlive_store.virtual_time

-- name: restore
create or replace function outlive.clock() returns timestamptz language sql stable parallel safe as 'select clock_timestamp()'
