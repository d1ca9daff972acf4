"""Colours that everybody can tell apart, in pictures and in print."""

import matplotlib.pyplot as plt

LINE_COLOURS = plt.style.library["tableau-colorblind10"]["axes.prop_cycle"].by_key()["color"]

COLOURS = "cividis"  # reads the same with and without colour blindness, and in print
