-- What must hold after a soak, each as a question for what breaks it: task_id, seq, key and words of evidence. One database belongs to one soak.

-- name: i1_a_step_was_completed_twice
select task_id, max(seq) as seq, null as key, format('step %s: %s completions', step_id, count(*)) as evidence
  from outlive_store.fact where type = 'step' and status in ('completed', 'skipped') group by tenant, task_id, step_id having count(*) > 1;

-- name: i1_a_task_was_resumed_under_an_old_epoch
select task_id, seq, null as key, format('epoch %s after %s', epoch, before) as evidence
  from (select task_id, seq, epoch, lag(epoch) over (partition by task_id order by seq) as before
          from (select task_id, seq, (convert_from(event, 'UTF8')::json ->> 'epoch')::bigint as epoch
                  from outlive_store.fact where type = 'resumed') resumed) pairs
 where epoch <= before;

-- name: i1_an_operation_is_of_an_epoch_that_never_was
select o.task_id, null::bigint as seq, o.tenant || '/' || o.task_id || ':' || o.step_id || ':' || o.operation_id as key,
       format('operation of epoch %s, task of epoch %s', o.epoch, t.epoch) as evidence
  from outlive_store.operation o join outlive_store.task t using (tenant, task_id) where o.epoch > t.epoch;

-- name: i1_a_task_has_not_exactly_one_end_or_something_follows_it
select task_id, max(seq) filter (where final) as seq, null as key, format('%s ends, %s events', count(*) filter (where final), max(seq)) as evidence
  from (select task_id, seq, coalesce((convert_from(event, 'UTF8')::json ->> 'final')::bool, false) as final from outlive_store.fact where type <> 'note') told
 group by task_id having count(*) filter (where final) <> 1 or max(seq) filter (where final) <> max(seq);

-- name: i2_a_command_has_no_answer
select task_id, pos as seq, command_id as key, verb as evidence from outlive_store.inbox where code is null and pos is not null and by is not null;

-- name: i2_a_mailbox_has_a_gap_or_was_not_read_to_its_end
select t.task_id, t.inbox_head as seq, null as key, format('%s letters, last %s, head %s, read to %s', count(i.pos), max(i.pos), t.inbox_head, t.applied) as evidence
  from outlive_store.task t left join outlive_store.inbox i on i.tenant = t.tenant and i.task_id = t.task_id and i.pos is not null
 group by t.tenant, t.task_id having count(i.pos) <> t.inbox_head or coalesce(max(i.pos), 0) <> t.inbox_head or (t.applied < t.inbox_head and t.ended_at is null);

-- name: i2_a_command_was_applied_twice
select task_id, max(seq) as seq, convert_from(event, 'UTF8')::json ->> 'command_id' as key, format('%s times', count(*)) as evidence
  from outlive_store.fact where type = 'command' group by task_id, 3 having count(*) > 1;

-- name: i2_a_signal_was_taken_twice_or_not_in_order
select task_id, seq, null as key, format('letter %s after %s', inbox_pos, before) as evidence
  from (select task_id, seq, inbox_pos, lag(inbox_pos) over (partition by task_id order by seq) as before
          from outlive_store.fact where inbox_pos is not null and name like 'wait_for%') taken
 where inbox_pos <= before;

-- name: i2_a_message_became_a_dead_letter
select subject as task_id, stream_seq as seq, null as key, reason as evidence from outlive_store.dead_letter;

-- name: i4_an_operation_is_open_although_its_task_has_ended
select o.task_id, null::bigint as seq, o.tenant || '/' || o.task_id || ':' || o.step_id || ':' || o.operation_id as key, o.status as evidence
  from outlive_store.operation o join outlive_store.task t using (tenant, task_id)
 where t.status = 'succeeded' and o.status not in ('succeeded', 'failed');

-- name: i5_the_numbers_of_a_history_have_a_gap_or_it_is_not_published_to_its_end
select t.task_id, t.last_seq as seq, null as key, format('%s events, numbers %s to %s, published %s', count(f.seq), min(f.seq), max(f.seq), t.published) as evidence
  from outlive_store.task t left join outlive_store.fact f using (tenant, task_id)
 group by t.tenant, t.task_id having count(f.seq) <> t.last_seq or min(f.seq) <> 1 or max(f.seq) <> t.last_seq or t.published <> t.last_seq;

-- name: i6_an_effect_was_begun_after_its_task_was_cancelled
select f.task_id, f.seq, o.step_id || ':' || o.operation_id as key, format('begun at %s, cancelled at %s', o.started_at, f.at) as evidence
  from outlive_store.fact f join outlive_store.operation o using (tenant, task_id)
 where f.type = 'command' and f.name = 'cancel' and f.status = 'applied' and o.status <> 'awaiting_approval' and o.attempt = 1
   and o.started_at > f.at + interval '50 milliseconds';

-- name: i7_a_task_was_stopped_for_its_version
select task_id, seq, null as key, convert_from(event, 'UTF8') as evidence from outlive_store.fact
 where type = 'status' and status = 'paused' and convert_from(event, 'UTF8') like '%version_mismatch%';

-- name: i8_a_sleep_ended_before_its_time
select slept.task_id, slept.seq, slept.step_id as key, format('slept until %s, ended at %s', waits.wait_until, slept.at) as evidence
  from outlive_store.fact slept
  join outlive_store.fact waits using (tenant, task_id, step_id)
 where slept.name = 'sleep' and slept.status = 'completed' and waits.status = 'waiting' and slept.at < waits.wait_until - interval '2 milliseconds';

-- name: end_a_task_has_not_come_to_it
select task_id, last_seq as seq, null as key,
       format('%s, owner %s, epoch %s, due %s, mail %s, waits for %s, %s', status, owner, epoch, due_at, mail_at, waiting_for, convert_from(reasons, 'UTF8')) as evidence
  from outlive_store.task where ended_at is null or status not in ('succeeded', 'cancelled') or (status = 'cancelled') <> (kind = 'stopped');

-- name: facts
select task_id, seq, event from outlive_store.fact order by task_id, seq;

-- name: inbox
select command_id, task_id, pos from outlive_store.inbox;

-- name: tasks
select task_id from outlive_store.task;

-- name: cursor
select seq from outlive_store.cursor where stream = $1;

-- name: operations
select o.tenant || '/' || o.task_id || ':' || o.step_id || ':' || o.operation_id as key, o.task_id, o.name, o.status,
       least(o.started_at, (select min(a.started_at) from outlive_store.attempt a
                             where a.tenant = o.tenant and a.task_id = o.task_id and a.step_id = o.step_id and a.operation_id = o.operation_id)) as began,
       (select convert_from(f.body, 'UTF8') from outlive_store.fact f
         where f.tenant = o.tenant and f.task_id = o.task_id and f.step_id = o.step_id and f.status = 'completed' limit 1) as result
  from outlive_store.operation o;

-- name: given
select task_id, step_id, min(at) as at from outlive_store.fact where type = 'approval' and status = 'given' group by 1, 2;

-- name: cancelled
select f.task_id, f.seq, f.at, convert_from(f.event, 'UTF8') as event from outlive_store.fact f where f.type = 'status' and f.status = 'cancelled';
