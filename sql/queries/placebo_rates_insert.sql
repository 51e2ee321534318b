insert into placebo_rates (run_id, tool, threshold, placebo_recipe_id, calls, placebos, placebos_scored, calls_sampled,
                           false_discovery_rate, rate_low, rate_high)
values (:run_id, :tool, :threshold, :placebo_recipe_id, :calls, :placebos, :placebos_scored, :calls_sampled,
        :false_discovery_rate, :rate_low, :rate_high)
