-- A cancel may want what the task did undone: until that is done, the task is cancelling and compensating.
set local search_path = outlive_store;

alter table task add column compensating boolean not null default false;
alter type journal_state add attribute compensating boolean;
