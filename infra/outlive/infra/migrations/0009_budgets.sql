-- What trees of tasks may spend on models, and have spent: one row a task whose model is asked, or that has a budget.
create table outlive_store.budget (
  tenant text not null,
  task_id text not null,
  parent text,                                 -- the nearest ancestor with a budget: what is spent here is drawn from it
  tokens bigint,                               -- own limits; null = none
  money bigint,                                -- millionths of a dollar
  steps bigint,
  seconds double precision,
  drawn bigint[] not null default '{0,0,0}',   -- taken from the parent, in blocks: tokens, money, steps
  used bigint[] not null default '{0,0,0}',    -- reserved or settled by the task itself
  lent bigint[] not null default '{0,0,0}',    -- drawn by its children
  started_at timestamptz not null default outlive.clock(),
  primary key (tenant, task_id)
) with (fillfactor = 70);
create index budget_parent on outlive_store.budget (tenant, parent) where parent is not null;

-- One request to a model: what was reserved for it, and what it cost once that was known. Kept in full while it is not.
create table outlive_store.spend (
  tenant text not null,
  task_id text not null,
  step_id text not null,
  attempt integer not null,
  model text not null,
  priced boolean not null,                     -- false: nobody knows what the model costs, money is not counted
  amount bigint[] not null,
  settled boolean not null default false,
  primary key (tenant, task_id, step_id, attempt)
);
