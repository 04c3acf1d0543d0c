-- What the exam reads as evidence: the tables themselves, by nothing that the product reads with.

-- name: task
-- $1 tenant, $2 task
select status, owner, epoch, last_seq, published, cancelling, waiting_for, wait_until, steps, convert_from(reasons, 'UTF8') as reasons,
       inbox_head = applied as heard, ended_at is not null as ended
  from outlive_store.task where tenant = $1 and task_id = $2;

-- name: facts
select seq, type, event from outlive_store.fact where tenant = $1 and task_id = $2 order by seq;

-- name: ledger
select key, step_id, operation_id, name, status, attempts, epoch from outlive.operation where tenant = $1 and task_id = $2 order by started_at, key;

-- name: attempts
select step_id, attempt, error_class, reason from outlive_store.attempt where tenant = $1 and task_id = $2 order by started_at;

-- name: commands
select command_id, verb, by, code, message from outlive_store.inbox where tenant = $1 and task_id = $2 order by received_at, pos;

-- name: read
-- How far the command stream was read. $1 stream
select seq from outlive_store.cursor where stream = $1;

-- name: worker
-- Which incarnation a process is. $1 pid
select incarnation from outlive_store.worker where pid = $1;

-- name: left_by
-- What a worker holds, and operations whose outcome it wrote. $1 incarnation
select (select count(*) from outlive_store.task where owner = $1)
     + (select count(*) from outlive_store.operation where worker = $1 and status <> 'started');
