-- From the command stream into inbox and task. One transaction a batch: `look` locks the cursor and the task rows, `admit` writes all of it
-- and moves the cursor. The cursor row is the election: who holds it (owner, epoch, until) writes, a former holder's statements find no row.

-- name: begin
-- $1 stream
insert into cursor (stream) values ($1) on conflict do nothing;

-- name: take
-- Free, expired, ours before, or held by the dead; else nothing is locked. The epoch fences whatever is still under way. $1 stream, $2 me,
-- $3 lease in seconds, $4 the dead
update cursor
   set owner = $2, epoch = epoch + 1, until = outlive.clock() + make_interval(secs => $3)
 where stream = $1 and (owner is null or owner = $2 or until < outlive.clock() or owner = any($4::uuid[]))
returning epoch, seq, created, at, digest, purged;

-- name: renew
-- $1 stream, $2 me, $3 epoch, $4 lease in seconds, $5 purged
update cursor set until = outlive.clock() + make_interval(secs => $4), purged = $5
 where stream = $1 and owner = $2 and epoch = $3
returning outlive.clock();

-- name: release
-- $1 stream, $2 me, $3 epoch
update cursor set owner = null, until = null where stream = $1 and owner = $2 and epoch = $3;

-- name: restart
-- Another stream, or one that lost its end: it is read from its first message. $1 stream, $2 me, $3 epoch, $4 created
update cursor set seq = 0, at = '', digest = '', purged = 0, created = $4
 where stream = $1 and owner = $2 and epoch = $3
returning 1;

-- name: look
-- What the store knows about a batch. No row: another ingester holds the cursor, or it moved. $1 stream, $2 me, $3 epoch, $4 cursor before the
-- batch, $5 $6 tenants and command ids, $7 $8 tenants and tasks (each once), $9 whether the kinds are wanted
with c as materialized (
  select 1 from cursor where stream = $1 and owner = $2 and epoch = $3 and seq = $4 for update),
known as materialized (
  select x.tenant, x.command_id, x.task_id, x.digest, x.code, x.message, x.decided_at
    from unnest($5::text[], $6::text[]) as k(tenant, command_id)
    join inbox x on x.tenant = k.tenant and x.command_id = k.command_id),
locked as materialized (
  select t.tenant, t.task_id, t.kind, t.digest, t.status, t.owner, t.inbox_head
    from unnest($7::text[], $8::text[]) as k(tenant, task_id)
    join task t on t.tenant = k.tenant and t.task_id = k.task_id
   where exists (select 1 from c)
   order by t.tenant, t.task_id
     for no key update of t)
select outlive.clock() as now,
       array(select row(known.*) from known) as commands,
       array(select row(locked.*) from locked) as tasks,
       array(select name from kind where $9) as kinds
  from c;

-- name: admit
-- $1 stream, $2 me, $3 epoch, $4 cursor before, $5 after, $6 time and $7 digest of the message there, $8 lease in seconds, $9 now,
-- $10 to $18 new tasks, $19 to $30 commands, $31 to $35 mail of known tasks (locked by `look`), $36 to $41 dead letters, $42 to $46 audit
with c as (
  update cursor set seq = $5, at = $6, digest = $7, until = $9::timestamptz + make_interval(secs => $8)
   where stream = $1 and owner = $2 and epoch = $3 and seq = $4
  returning 1),
t as (
  insert into task (tenant, task_id, kind, digest, input, labels, priority, inbox_head, due_at, mail_at, created_at, updated_at)
  select x.tenant, x.task_id, x.kind, x.digest, x.input, x.labels::jsonb, x.priority, x.head, $9, case when x.mail then $9 end, $9, $9
    from unnest($10::text[], $11::text[], $12::text[], $13::bytea[], $14::bytea[], $15::text[], $16::smallint[], $17::bigint[], $18::bool[])
      as x(tenant, task_id, kind, digest, input, labels, priority, head, mail)
   order by x.tenant, x.task_id
  on conflict do nothing
  returning 1),
i as (
  insert into inbox (tenant, command_id, task_id, pos, verb, name, by, claimed, digest, body, code, message, received_at, decided_at)
  select x.tenant, x.command_id, x.task_id, x.pos, x.verb, x.name, x.by, x.claimed, x.digest, x.body, x.code, x.message, $9,
         case when x.code is not null then $9 end
    from unnest($19::text[], $20::text[], $21::text[], $22::bigint[], $23::text[], $24::text[], $25::text[], $26::bool[], $27::bytea[],
                $28::bytea[], $29::text[], $30::text[])
      as x(tenant, command_id, task_id, pos, verb, name, by, claimed, digest, body, code, message)),
m as (
  update task t
     set inbox_head = x.head,
         due_at = case when x.due then least(t.due_at, $9) else t.due_at end,
         mail_at = case when x.mail then least(t.mail_at, $9) else t.mail_at end
    from unnest($31::text[], $32::text[], $33::bigint[], $34::bool[], $35::bool[]) as x(tenant, task_id, head, due, mail)
   where t.tenant = x.tenant and t.task_id = x.task_id),
d as (
  insert into dead_letter (tenant, subject, stream_seq, reason, headers, body, at)
  select x.tenant, x.subject, x.seq, x.reason, x.headers::jsonb, x.body, $9
    from unnest($36::text[], $37::text[], $38::bigint[], $39::text[], $40::text[], $41::bytea[])
      as x(tenant, subject, seq, reason, headers, body)
   where not exists (  -- the stream may be read twice
           select 1 from dead_letter y
            where y.tenant = x.tenant and y.stream_seq = x.seq and y.subject = x.subject and y.body = x.body)),
a as (
  insert into audit (tenant, task_id, who, what, detail, at)
  select x.tenant, x.task_id, x.who, x.what, x.detail, $9
    from unnest($42::text[], $43::text[], $44::text[], $45::text[], $46::text[]) as x(tenant, task_id, who, what, detail))
select (select count(*) from c) as moved, (select count(*) from t) as made;
