"""The images that the batch norms of a run's subnets are calibrated on."""

from __future__ import annotations

from raynas.data.augment import AugmentConfig
from raynas.data.calibration import Calibration, calibration_batches
from raynas.data.config import CalibrationConfig
from raynas.data.load import Data
from raynas.results import RunDir


def load_calibration(run: RunDir, data: Data) -> Calibration:
    """Draw the images that the preset of a run calibrates batch norms on.

    Raises:
        UserError: an image cannot be read, or there are too few.
    """
    preset = run.read_yaml("preset.yaml", "data")
    config = CalibrationConfig.model_validate(preset.get("calibration", {}))
    augment = AugmentConfig.model_validate(preset.get("recipe", {}).get("augment", {}))
    return Calibration(config, calibration_batches(data, augment, config))
