"""Goal: the table says what was measured. Method: rounds made up, with medians and ratios known beforehand, and defects in them."""

import sys
import unittest

import compare
import peers
from processes import Failed


def figures(**changed) -> dict:
    return {key: 10 for key, _ in compare.FIGURES} | changed


class Summary(unittest.TestCase):
    def test_ratios_are_taken_within_a_round(self):
        rounds = [{"stepwarden": figures(p50_ms=ours), "dbos": figures(p50_ms=theirs)} for ours, theirs in [(1, 2), (10, 60), (100, 300)]]
        self.assertEqual(compare.summary(rounds)["dbos"]["p50_ms"], {"median": 60, "rounds": 3, "ratio": 3})

    def test_a_figure_that_a_system_does_not_have_is_left_out(self):
        rounds = [{"stepwarden": figures(), "dbos": figures(fsyncs_per_order=None)}] * 2
        summed = compare.summary(rounds)
        self.assertNotIn("fsyncs_per_order", summed["dbos"])
        settings = peers.Settings(1, 1, 1, 1, None)
        self.assertIn("| fsyncs per order | 10 | - |", compare.table(summed, settings, markdown=True))

    def test_without_ours_there_is_no_ratio(self):
        self.assertNotIn("ratio", compare.summary([{"dbos": figures()}])["dbos"]["p50_ms"])

    def test_a_figure_that_is_missing_in_one_round_is_an_error(self):
        for defect in [None, 0, -1, float("nan"), float("inf"), "10"]:
            with self.subTest(defect), self.assertRaises(Failed):
                compare.summary([{"dbos": figures()}, {"dbos": figures(p99_ms=defect)}])

    def test_a_system_that_is_missing_in_one_round_is_an_error(self):
        with self.assertRaises(KeyError):
            compare.summary([{"dbos": figures()}, {}])

    def test_a_busy_machine_is_called_busy(self):
        facts = {"date": "", "cpu_model": "x", "rounds": 5, "orders": 1, "single": 1, "in_flight": 1, "versions": {}, "cpus": 2, "work": "nothing"}
        said = {load: compare.sentence(facts | {"load_average": load}) for load in [0.0, 0.8, 0.9, 9.0]}
        self.assertEqual([load for load, text in said.items() if "busy" in text], [0.9, 9.0])

    def test_numbers_have_three_digits(self):
        self.assertEqual([compare.short(n) for n in [0.4567, 1, 15.23, 99.96, 414.4, 1280]], ["0.457", "1", "15.2", "100", "414", "1,280"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
