# Apps run in Flower's own processes; there is nothing to collect in them.
collect_ignore = ["any_method", "roll_call"]
