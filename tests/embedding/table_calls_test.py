"""What a call of `ml.Table` may cost; `make bench-calls` measures more of them, and longer."""

from benchmarks import table_calls


def test_a_lookup_of_one_id_costs_at_most_one_and_a_half_gathers():
    name = "lookup of 1 id"
    row = table_calls.measure_row(name, table_calls.make_calls()[name], rounds=21, calls=100)
    assert float(row[3]) <= table_calls.BAR, row
