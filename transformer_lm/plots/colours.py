"""Colours that can be distinguished with any colour vision, on screen and in print."""

import matplotlib.pyplot as plt

LINE_COLOURS = plt.style.library["tableau-colorblind10"]["axes.prop_cycle"].by_key()["color"]

COLOURS = "cividis"  # looks the same with and without colour blindness, and in print
