-- What an explorer reads of the tasks of one run: one tenant is one run.

-- name: look
select t.task_id, t.parent, t.parent_step, t.kind, t.status, t.owner, t.epoch, t.waiting_for, t.current_step,
       t.ended_at is not null and t.published = t.last_seq as over,
       extract(epoch from t.due_at - (select outlive.clock()))::float8 as due_in,
       t.mail_at is not null or t.tell_at is not null or t.inbox_head > t.applied as mail,
       convert_from(t.reasons, 'UTF8') as reasons
  from task t
 where t.tenant = $1
 order by t.created_at, t.task_id

-- name: facts
select task_id, seq, type, step_id, name, status, body
  from fact
 where tenant = $1
 order by task_id, seq

-- name: answer
-- Why a submit was refused, if it was.
select code, message from inbox where tenant = $1 and verb = 'submit' and code is not null

-- name: read_to
-- How far the command stream was read.
select coalesce(max(seq), 0) from cursor

-- name: fenced
-- Whether a worker, by its process id, was declared dead.
select not exists (select 1 from worker where pid = $1 and not fenced)
