-- Databases of tests. Names are made here, never given by anybody, and quoted by format().

-- name: lock
-- Two test processes never make the template at the same time. $1 name
select pg_advisory_lock(hashtextextended($1, 0))

-- name: exists
select exists (select from pg_database where datname = $1)

-- name: create
select format('create database %I', $1::text)

-- name: rename
select format('alter database %I rename to %I', $1::text, $2::text)

-- name: copy
-- $1 name, $2 template
select format('create database %I template %I', $1::text, $2::text)

-- name: drop
select format('drop database if exists %I with (force)', $1::text)
