-- The fields of a kind's input that are not given out: those that its schema marks as writeOnly.
set local search_path = outlive_store;

create function hidden(kind text) returns text[] language sql stable parallel safe as $$
  select array(select p.key from outlive_store.kind k, jsonb_each(k.input_schema -> 'properties') p
                where k.name = $1 and p.value -> 'writeOnly' = 'true')
$$;
