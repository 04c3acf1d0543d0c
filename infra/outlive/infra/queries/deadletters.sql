-- Settling dead letters. Nothing is deleted: a letter is resolved, and the audit trail says by whom.

-- name: open
-- $1 tenant, $2 id
select subject, stream_seq, headers, body from dead_letter where tenant = $1 and id = $2 and resolved_at is null;

-- name: forget
-- The `invalid` that its id was answered with would be the answer again. $1 tenant, $2 command id, $3 body
delete from inbox where tenant = $1 and command_id = $2 and code = 'invalid' and body = $3;

-- name: resolve
-- $1 tenant, $2 id, $3 resolution, $4 who, $5 what
with d as (
  update dead_letter set resolved_at = outlive.clock(), resolution = $3
   where tenant = $1 and id = $2 and resolved_at is null
  returning subject)
insert into audit (tenant, who, what, detail) select $1, $4, $5, d.subject || ': ' || $3 from d
returning 1;
