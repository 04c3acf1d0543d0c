-- What the doctor looks at. It may scan: a person waits for it, and nothing else does.

-- name: server
select current_setting('server_version_num')::int as version, current_setting('server_version') as name,
       current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit,
       current_setting('full_page_writes') as full_page_writes, pg_is_in_recovery() as standby;

-- name: clock
select clock_timestamp();

-- name: backend
select pg_backend_pid();

-- name: workers
select count(*) filter (where not fenced and until >= now) as alive,
       coalesce(array_agg(host || ':' || pid order by until) filter (where fenced or until < now), '{}') as gone,
       coalesce(array_agg(host || ':' || pid || ': ' || (select string_agg(p, ', ') from jsonb_array_elements_text(health -> 'problems') p)
                          order by host, pid) filter (where not fenced and until >= now and health -> 'problems' <> '[]'), '{}') as ill,
       coalesce(sum((health ->> 'abandoned_threads')::int) filter (where not fenced and until >= now), 0) as hung
  from worker, (select outlive.clock() as now) c;

-- name: orphans
-- Tasks whose owner can no longer write. $1 how long that is normal, in seconds
select count(*)
  from task t
 where owner is not null
   and not exists (select 1 from worker w
                    where w.incarnation = t.owner and w.until >= outlive.clock() - make_interval(secs => $1));

-- name: due
-- Work that nobody took. $1 how long that is normal, in seconds
select kind, count(*) as tasks, min(due_at) as since
  from task
 where due_at < outlive.clock() - make_interval(secs => $1) and owner is null
 group by kind
 order by since;

-- name: mail
-- Commands to tasks without an actor that no clerk applied. $1 how long that is normal, in seconds
select count(*) as tasks, min(mail_at) as since
  from task
 where mail_at < outlive.clock() - make_interval(secs => $1) and owner is null;

-- name: undecided
-- Commands without an answer. $1 how long that is normal, in seconds
select count(*) as commands, min(received_at) as since
  from inbox
 where code is null and not starts_with(command_id, '_') and received_at < outlive.clock() - make_interval(secs => $1);

-- name: unpublished
-- Tasks that were left with events that may not be in the stream. $1 how long that is normal, in seconds
select count(*) as tasks, min(sweep_at) as since
  from task
 where sweep_at < outlive.clock() - make_interval(secs => $1);

-- name: dead_letters
-- Messages that nobody dealt with. $1 how long that is normal, in seconds
select count(*) as letters, min(at) as since
  from dead_letter
 where resolved_at is null and at < outlive.clock() - make_interval(secs => $1);

-- name: cursor
-- $1 stream
select seq, created, until >= outlive.clock() as held from cursor where stream = $1;
