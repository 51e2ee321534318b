insert into call_costs (run_id, tool, seconds, nats_per_second, price, price_unit, nats_per_price, cost_threshold)
values (:run_id, :tool, :seconds, :nats_per_second, :price, :price_unit, :nats_per_price, :cost_threshold)
on conflict do nothing
