# Apps run in Flower's own processes; there is nothing to collect in them.
collect_ignore = ["roll_call"]
