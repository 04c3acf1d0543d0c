-- Plans and versions. A plan is a fact of its own type; a step's fact names the item of the plan that it belongs to. Model and prompt are
-- those that the task's function said last. None of it is in an index: no step changes more than it did.
set local search_path = outlive_store;

alter table task add column plan_version integer;
alter table task add column model_version text;
alter table task add column prompt_version text;
alter table fact add column item text;
alter table kind add column plans boolean not null default false;  -- a person may change the plans of its tasks
alter type journal_state add attribute plan_version integer, add attribute model_version text, add attribute prompt_version text;
alter type journal_fact add attribute item text;

create or replace view outlive.step as
  select tenant, task_id, step_id, name, status, attempt, took, wait_until, seq, at, item from fact, (select) as read_only where type = 'step';
