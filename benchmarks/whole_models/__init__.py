# SPDX-License-Identifier: Apache-2.0
"""Models as users have them: zoo, the models; measure, one of them; run, the table and JSON."""
