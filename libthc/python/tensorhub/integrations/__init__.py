# SPDX-License-Identifier: Apache-2.0
"""TensorHub in frameworks, by what they offer for that. Each module needs its framework."""
