"""Settings of the forecast engine, one set for CPU and one for memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from predictor.calibrate import CalibrationRules
from predictor.champion import ChampionRules
from predictor.models.base import DAY_SECONDS, HOUR_SECONDS
from slacktide.settings import Settings

_SHORT_HORIZON_SECONDS = 6 * HOUR_SECONDS


class EngineSettings(Settings, frozen=True):
    """What is asked of the engine, and how fast it learns, releases and changes its mind."""

    risk: Annotated[
        float, Meta(gt=0, le=0.5, description="share of forecasts that may turn out too low: the asked violation rate")
    ] = 0.01
    horizon_seconds: Annotated[
        float, Meta(ge=300, le=7 * 86400, description="how far a forecast reaches: the peak within this time")
    ] = 3600.0
    candidates: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="models that run, all in shadow but one; the first begins as champion"),
    ] = ("boosted", "quantile_regression", "window_max")
    fallback: Annotated[str, Meta(min_length=1, description="model that answers where no candidate can")] = "window_max"
    cold_seconds: Annotated[
        float, Meta(ge=0, le=7 * 86400, description="a node measured for less than this counts with its requests")
    ] = 8 * 3600.0
    release_keep_ratio: Annotated[
        float, Meta(ge=0, lt=1, description="share of a fall of the forecast that is still held back after an hour")
    ] = 0.95
    release_step_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of S by which a peak may fall within an hour in any case")
    ] = 3.0

    calibration_days: Annotated[
        float, Meta(ge=1, le=35, description="days of own outcomes that the calibration rests on")
    ] = 28.0
    prior_weight_days: Annotated[
        float, Meta(ge=0, le=365, description="weight of the shipped residuals, in days of own outcomes")
    ] = 28.0
    prior_nodes: Annotated[
        int, Meta(ge=1, le=100000, description="the shipped residuals weigh as much as those of so many nodes at most")
    ] = 100
    feedback_per_day: Annotated[
        float, Meta(ge=0, le=5, description="speed at which measured violations correct the level; 0 for not at all")
    ] = 1.0
    model_risk_ratio: Annotated[
        float,
        Meta(ge=0.1, le=10, description="models are asked at the risk times this; the shift makes up for the rest"),
    ] = 2.0

    champion_tolerance_ratio: Annotated[
        float, Meta(ge=1, le=10, description="a model is safe up to the asked violation rate times this")
    ] = 1.25
    champion_margin_percent: Annotated[
        float, Meta(ge=0, le=50, description="a challenger must reserve this much less than the champion")
    ] = 5.0
    champion_wait_seconds: Annotated[
        float, Meta(ge=0, le=35 * 86400, description="for how long a challenger must be ahead without a break")
    ] = 86400.0
    champion_memory_days: Annotated[
        float, Meta(gt=0, le=365, description="days after which an outcome counts a third in the models' scores")
    ] = 7.0

    alarm_risk_ratio: Annotated[
        float, Meta(gt=0, le=1, description="factor on the asked risk while the fleet is surprised")
    ] = 0.25
    alarm_half_life_seconds: Annotated[
        float, Meta(gt=0, le=7 * 86400, description="time in which the answer to a surprise halves")
    ] = 6 * 3600.0
    rise_margin_percent: Annotated[
        float, Meta(ge=0, le=1000, description="a node whose use stands so far above its week has a new level")
    ] = 10.0
    rise_risk_ratio: Annotated[
        float, Meta(gt=0, le=1, description="factor on the asked risk for a node with a new level")
    ] = 0.25
    rise_hold_seconds: Annotated[
        float, Meta(ge=0, le=7 * 86400, description="how long a node with a new level stays widened")
    ] = 6 * 3600.0
    exception_step_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of S that a violation adds on a node that violates persistently")
    ] = 5.0

    @property
    def learn_seconds(self) -> float:
        """Time between the decisions that are learned from: they overlap less, and a back-test makes the same ones."""
        return HOUR_SECONDS if self.horizon_seconds <= _SHORT_HORIZON_SECONDS else _SHORT_HORIZON_SECONDS

    @property
    def overlap(self) -> float:
        """How many decisions that are learned from share one horizon, at least one."""
        return max(1.0, self.horizon_seconds / self.learn_seconds)

    def calibration(self) -> CalibrationRules:
        """What a model's calibration needs."""
        return CalibrationRules(
            risk=self.risk,
            days=self.calibration_days,
            prior_weight_days=self.prior_weight_days,
            prior_nodes=self.prior_nodes,
            feedback_per_day=self.feedback_per_day,
            loosens=self.overlap <= 1.0,
            decisions_per_day=DAY_SECONDS / self.learn_seconds,
        )

    def champion(self) -> ChampionRules:
        """What the choice of the champion needs: three days of a node's outcomes at least."""
        return ChampionRules(
            risk=self.risk,
            tolerance=self.champion_tolerance_ratio,
            margin=self.champion_margin_percent / 100.0,
            wait_seconds=self.champion_wait_seconds,
            memory_days=self.champion_memory_days,
            least_decisions=max(100.0, 1.0 / self.risk),
        )
