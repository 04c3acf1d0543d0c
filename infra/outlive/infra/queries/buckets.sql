-- Limits of remotes. A row is locked, changed by outlive.protocol.bucket and written back, in one short transaction.

-- name: lock
-- $1 tenant, $2 tool
select b.tokens, b.at, b.leases, outlive.clock() as now from bucket b where b.tenant = $1 and b.tool = $2 for update;

-- name: add
-- $1 tenant, $2 tool
insert into bucket (tenant, tool, at) values ($1, $2, outlive.clock()) on conflict do nothing;

-- name: write
-- $1 tenant, $2 tool, $3 tokens, $4 at, $5 leases, $6 paused until
update bucket set tokens = $3, at = $4, leases = $5, paused_until = $6 where tenant = $1 and tool = $2;

-- name: paused
-- Whom to leave alone now.
select tenant, tool, paused_until from bucket where paused_until > (select outlive.clock());
