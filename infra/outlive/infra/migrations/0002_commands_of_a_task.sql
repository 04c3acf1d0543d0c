-- Commands that were decided on arrival (a submit, a no) have no place in their task's mailbox: this finds them by their task.
create index inbox_arrival on outlive_store.inbox (tenant, task_id, command_id) where pos is null;
