select judged_calls, kept_calls, kept_texts from checked_yield
