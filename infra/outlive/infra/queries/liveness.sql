-- Workers: one row and one session advisory lock an incarnation. Task rows are not touched by heartbeats.
-- A server that starts, or recovers from the crash of one of its processes (then the postmaster stays), frees every lock and ends every
-- session. Since when it has not is told by the start of the postmaster and by the statistics, which a recovery resets: `server_started`.

-- name: register
-- Again when the heartbeat alone was restarted; no row: declared dead meanwhile.
-- $1 incarnation, $2 lease in seconds, $3 host, $4 pid, $5 version, $6 protocol, $7 kinds, $8 slots
insert into worker as w (incarnation, server_started, until, host, pid, version, protocol, kinds, slots)
values ($1, greatest(pg_postmaster_start_time(), (select stats_reset from pg_stat_bgwriter)), outlive.clock() + make_interval(secs => $2),
        $3, $4, $5, $6, $7, $8)
on conflict (incarnation) do update set until = excluded.until where not w.fenced
returning num;

-- name: lock
-- The death signal: held by the heartbeat's session, freed by the server when the process is gone. $1 class, $2 number
select pg_try_advisory_lock($1, $2);

-- name: locked
-- The lock was taken (again) on this server. $1 incarnation
update worker set server_started = greatest(pg_postmaster_start_time(), (select stats_reset from pg_stat_bgwriter)) where incarnation = $1;

-- name: beat
-- No row: declared dead; this incarnation may never write again. $1 incarnation, $2 lease, $3 busy, $4 draining, $5 health
update worker
   set until = outlive.clock() + make_interval(secs => $2), busy = $3, draining = $4, health = $5,
       server_started = greatest(pg_postmaster_start_time(), (select stats_reset from pg_stat_bgwriter))
 where incarnation = $1 and not fenced
returning clock_timestamp() as wall, outlive.clock() as now;

-- name: retire
-- A clean end: nothing is owned any more. $1 incarnation
delete from worker w where w.incarnation = $1 and not exists (select 1 from task t where t.owner = $1);

-- name: dead
-- Killed: its lock is free, no other connection of the incarnation is open, and it had the lock since the server started (see above).
-- Or its lease has run out; $3 says whether the observer may count that. $1 me, $2 lock class
select w.incarnation,
       case when w.until < outlive.clock() then 'lease expired' else 'process ended' end as reason
  from worker w
 where w.incarnation <> $1
   and (($3 and w.until < outlive.clock())
     or (w.server_started = greatest(pg_postmaster_start_time(), (select stats_reset from pg_stat_bgwriter))
         and not exists (select 1 from pg_locks k
                          where k.locktype = 'advisory' and k.classid = $2::bigint::oid and k.objid = w.num::bigint::oid and k.granted
                            and k.database = (select oid from pg_database where datname = current_database()))
         and not exists (select 1 from pg_stat_activity a where a.application_name = 'outlive:' || w.incarnation)));

-- name: fence
-- From here on the dead ones' heartbeats are refused; only a worker with a lease of its own may do this, so that two never do it to each other.
-- $1 me, $2 incarnations
with l as materialized (
  select incarnation, fenced, until from worker where incarnation = $1 or incarnation = any($2) order by incarnation for no key update)
update worker w
   set fenced = true
 where w.incarnation = any($2)
   and exists (select 1 from l where l.incarnation = $1 and not l.fenced and l.until > outlive.clock())
returning w.incarnation;

-- name: bury
-- Dead workers that own nothing any more. $1 incarnations
delete from worker w
 where w.fenced and w.incarnation = any($1) and not exists (select 1 from task t where t.owner = w.incarnation);

-- name: started
-- How long the server is up, in seconds.
select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8;
