"""`python -m examples.demo`, in the folder of the checkout."""

from examples.demo.command import demo

demo()
