#!/usr/bin/env python3
"""The figures of the load experiments (bench/load/figures.py) on runs whose every token is made up,
against values worked out by hand; and that what is shown fits a terminal."""

import os
import sys
import unittest
import xml.etree.ElementTree

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "bench", "load"))

import experiments
import figures
import show

KINDS = ["quiet", "cpu", "quiet", "accel", "quiet"]


def phase(begin, times_ms, bad=(), cpu_taken=None, own=1.0, replans=None):
    """Tokens one behind the other from `begin` on; those of the indices `bad` are disturbed."""
    at, begins = begin, []
    for ms in times_ms:
        begins.append(at)
        at += ms / 1e3
    device = {} if replans is None else {"replans": replans, "rollbacks": 0}
    return {"begin_s": begin, "end_s": at, "cpu_taken": cpu_taken, "own_cpu": own,
            "disturbed": len(bad) / len(times_ms),
            "counters": {"EMU0": {"graphs": 9}, "ATS0": device},
            "tokens": {"begin_s": begins, "us": [1e3 * ms for ms in times_ms],
                       "undisturbed": [int(i not in bad) for i in range(len(times_ms))]}}


def run(cpu_ms, accel_ms, after_ms=(), replans=None, quiet_ms=50.0):
    """200 tokens of 50 ms without load, and 100 of the given times with load."""
    phases, at = [], 0.0
    for kind, ms in zip(KINDS, (quiet_ms, cpu_ms, quiet_ms, accel_ms, quiet_ms)):
        times = [ms] * (200 if kind == "quiet" else 100)
        if phases and kind == "quiet":
            times[:len(after_ms)] = after_ms
        phases.append(phase(at, times, cpu_taken=0.61 if kind == "cpu" else None,
                            own=0.4 if kind == "cpu" else 1.0,
                            replans=None if replans is None else replans))
        at = phases[-1]["end_s"]
    return phases


class Figures(unittest.TestCase):
    def test_rise_and_how_much_smaller_it_is(self):
        # static: 50 to 100 and to 90; adaptive: 50 to 80 and to 60
        pair = {"static": run(100, 90), "adaptive": run(80, 60)}
        of = figures.figures([pair], KINDS)
        cpu, accel = of["phases"][1], of["phases"][3]
        self.assertAlmostEqual(cpu["rise"]["static"]["median"], 1.0)
        self.assertAlmostEqual(cpu["rise"]["adaptive"]["median"], 0.6)
        self.assertAlmostEqual(cpu["smaller"]["median"], 0.4)
        self.assertAlmostEqual(accel["rise"]["static"]["median"], 0.8)
        self.assertAlmostEqual(accel["rise"]["adaptive"]["median"], 0.2)
        self.assertAlmostEqual(accel["smaller"]["median"], 0.75)
        self.assertAlmostEqual(cpu["ms"]["static"]["median"], 100)
        self.assertAlmostEqual(cpu["cpu_taken_percent"]["static"]["median"], 61)
        self.assertAlmostEqual(cpu["cpu_lost_percent"]["adaptive"]["median"], 60)
        self.assertNotIn("rise", of["phases"][0])
        self.assertIsNone(of["replans"]["adaptive"]["median"])

    def test_a_rise_of_almost_nothing_is_no_base(self):
        pair = {"static": run(50.5, 90), "adaptive": run(50.4, 60)}
        self.assertIsNone(figures.figures([pair], KINDS)["phases"][1]["smaller"]["median"])

    def test_repeats_are_summed_up(self):
        pairs = [{"static": run(100, 90), "adaptive": run(a, 60, replans=2)}
                 for a in (80, 70, 90)]
        smaller = figures.figures(pairs, KINDS)["phases"][1]["smaller"]
        self.assertAlmostEqual(smaller["median"], 0.4)  # of 0.4, 0.6, 0.2
        self.assertAlmostEqual(smaller["spread"], 0.2)
        self.assertEqual(figures.figures(pairs, KINDS)["replans"]["adaptive"]["median"], 10)
        self.assertIsNone(figures.figures(pairs[:1], KINDS)["phases"][1]["smaller"]["spread"])

    def test_recovery(self):
        # slow, slow, then four as before, one of 52.6 (5.2 % more), then as before: the row that
        # counts begins behind 2 * 80 + 4 * 50 + 52.6 ms
        after = [80, 80, 50, 50, 50, 50, 52.6, 52.4, 50, 50, 50, 50]
        r = run(100, 90, after)
        self.assertAlmostEqual(figures.recovery_s(r, KINDS, 1), 0.4126)
        self.assertAlmostEqual(figures.recovery_s(run(100, 90), KINDS, 1), 0)
        # a token that another machine disturbed neither counts nor breaks a row
        r[2]["tokens"]["undisturbed"][6] = 0
        self.assertAlmostEqual(figures.recovery_s(r, KINDS, 1), 0.16)
        slow = run(100, 90)
        slow[2] = phase(slow[1]["end_s"], [53] * 200)
        self.assertIsNone(figures.recovery_s(slow, KINDS, 1))
        self.assertIsNone(figures.recovery_s(run(100, 90)[:2], KINDS[:2], 1))

    def test_the_difference_without_load(self):
        # what comes within two seconds behind a load is recovery and does not count
        pair = {"static": run(100, 90), "adaptive": run(80, 60, [80] * 25, quiet_ms=50.25)}
        of = figures.figures([pair], KINDS)
        self.assertAlmostEqual(of["difference_without_load"]["median"], 0.005)

    def test_disturbed_tokens_do_not_count_if_there_are_others(self):
        p = phase(0, [90] * 60 + [50] * 40, bad=range(60))
        self.assertEqual(figures.median_us(p), 50e3)
        p = phase(0, [90] * 90 + [50] * 10, bad=range(90))  # too few are left
        self.assertEqual(figures.median_us(p), 90e3)

    def test_tokens_at_the_same_depth_are_compared(self):
        static = [phase(0, [50, 60, 70, 500])]
        adaptive = [phase(0, [51, 61.2, 71.4, 70], bad=[3])]
        self.assertAlmostEqual(figures.paired_difference(static, adaptive), 0.02)


class Checks(unittest.TestCase):
    def checked(self, adaptive, seconds=(10, 10, 10, 10, 10)):
        experiment = experiments.load(list(seconds), 60, 60)
        of = figures.figures([{"static": run(100, 90), "adaptive": adaptive}], KINDS)
        return [c["ok"] for c in
                figures.checks(of, experiment.phases, experiment.bounds, True)]

    def test_bounds(self):
        # smaller under CPU load; recovered; taken and lost; the same two for the accelerator;
        # no difference
        self.assertEqual(self.checked(run(93, 74)), [True, True, True, True, True, True, True])
        self.assertEqual(self.checked(run(94, 76)), [False, True, True, True, False, True, True])
        self.assertEqual(self.checked(run(93, 74, [60] * 36)),
                         [True, False, True, True, True, False, True])
        self.assertEqual(self.checked(run(93, 74, quiet_ms=50.6))[-1], False)
        off = run(93, 74)
        off[1]["cpu_taken"] = 0.635
        off[1]["own_cpu"] = 0.435
        self.assertEqual(self.checked(off)[2:4], [False, False])


class Shown(unittest.TestCase):
    def result(self, pairs, experiment):
        of = figures.figures(pairs, [phase.kind for phase in experiment.phases])
        return {"model": "qwen3-next-80b-a3b", "machine": "rig desktop-4090, 12345 MiB of VRAM",
                "emulated": True, "repeats": len(pairs), "figures": of, "late": [],
                "period_ms": 2, "phases": experiment.text(), "cpu_priority": "real-time",
                "checks": figures.checks(of, experiment.phases, experiment.bounds, True)}

    def test_it_fits(self):
        experiment = experiments.load([10, 10, 10, 9, 10], 60, 60)
        pairs = [{"static": run(100, 90), "adaptive": run(80, 60, replans=2)}] * 3
        result = self.result(pairs, experiment)
        for text in (show.table(result, experiment), show.plot(pairs, experiment, False)):
            for line in text.split("\n"):
                self.assertLessEqual(len(line), 80, line)
        plot = show.plot(pairs, experiment, False)
        for mark in ("+", "o", "*", "CPU 60 %"):
            self.assertIn(mark, plot)
        self.assertNotIn("\033", plot)
        chart = show.chart(pairs, result, experiment)
        root = xml.etree.ElementTree.fromstring(chart)
        self.assertEqual(len([e for e in root if e.tag.endswith("path")]), 2)
        self.assertIn("(emulated accelerator)", chart)
        text = show.markdown(result, experiment)
        self.assertIn("Emulated accelerator", text)
        rows = [line for line in text.split("\n") if line.startswith("|")]
        self.assertEqual({row.count("|") for row in rows}, {9, 5})

    def test_a_ramp_fits(self):
        experiment = experiments.ramp(180)
        begins = experiment.starts()
        pairs = [{p: [phase(begin, [ms] * 150, bad=range(120), cpu_taken=taken, replans=1) for
                      begin, ms, taken in zip(begins, (50, 60, 70, 50), (None, 0.15, 0.3, None))]
                  for p in figures.POLICIES}]
        result = self.result(pairs, experiment)
        text = show.table(result, experiment)
        self.assertIn("re-plans 4.0", text)
        self.assertIn("up to 80 % of", text)
        for line in (text + "\n" + show.plot(pairs, experiment, False)).split("\n"):
            self.assertLessEqual(len(line), 80, line)

    def test_where_tokens_are_drawn(self):
        # phases of 10 s: of ten bins, two are of each phase
        experiment = experiments.load([10, 10, 10, 9, 10], 60, 60)
        experiment = experiments.Experiment("load", "", experiment.phases[:3] +
                                            (experiments.Phase(10, accel=60),
                                             experiments.Phase(10)), 0, 0, {})
        pairs = [{"static": run(100, 90), "adaptive": run(80, 60)}]
        self.assertEqual(figures.series(pairs, "static", experiment, 10),
                         [50, 50, 100, 100, 50, 50, 90, 90, 50, 50])

    def test_phases_are_told_to_the_driver(self):
        self.assertEqual(experiments.load([20, 30, 15, 30, 15], 60, 60).text(),
                         "20s;30s:cpu=60;15s;30s:compute=2.5,link=2.5;15s")
        self.assertEqual(experiments.ramp(180).text(), "20s;180s:cpu=0-30;30s:cpu=30;15s")
        self.assertEqual(experiments.long(2048).text(), "2048t")
        self.assertEqual(experiments.ramp(180).starts(), [0, 20, 200, 230, 245])


if __name__ == "__main__":
    unittest.main()
