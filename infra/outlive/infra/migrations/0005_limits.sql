-- How often a tool's remote may be called: one row a tenant and tool, made by the first call of a tool that declares a limit, or
-- by the first pause that a remote asks for. Changed under its lock, by the pure functions of outlive.protocol.bucket.
create table outlive_store.bucket (
  tenant text not null,
  tool text not null,
  tokens double precision,                     -- free ones as of `at`; null = nobody has taken one yet
  at timestamptz not null,                     -- up to when tokens have been added; the end of a pause, if that is later
  leases bytea not null default '[]',          -- JSON list of Lease: tokens that a worker may still spend
  paused_until timestamptz,                    -- `at`, while the remote wants to be left alone
  primary key (tenant, tool)
) with (fillfactor = 50);
-- Taking a token leaves paused_until as it is.
create index bucket_paused on outlive_store.bucket (paused_until) where paused_until is not null;
