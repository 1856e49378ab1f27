"""Schemas of stored results: the values that the page of each kind reads. Other values are let through unchanged."""

from typing import Annotated, Any, NotRequired, TypedDict

from normscope.results.decoding import Count, Positive, Range

Cell = str | bool | float | None
Numbers = list[float | None]


class StoredPrediction(TypedDict):
    eta_star: float
    lambda_max: float
    mode: str
    rule: str
    theory: str
    optimizer: str
    loss: str
    loss_kind: str
    stats: str
    batch_size: Count
    input_shape: list[int]
    warnings: list[str]
    notes: list[str]
    layers: list[dict[str, Cell]]
    settings: dict[str, Any]
    environment: dict[str, Any]
    calibrated_range: NotRequired[tuple[Positive, Positive] | None]
    advice: NotRequired[str | None]


class StoredMeasurement(TypedDict):
    eta_star: float
    lambda_max: float
    residual: float
    converged: bool
    matrix: str
    stats: str
    rule: str
    optimizer: str
    loss: float
    loss_name: str
    loss_kind: str
    products: Count
    by_layer: dict[str, float]
    layer_residuals: dict[str, float]
    by_statistics: dict[str, float]
    notes: list[str]
    settings: dict[str, Any]
    environment: dict[str, Any]
    advice: NotRequired[str | None]


class StoredNodes(TypedDict):
    n: Count
    nodes: list[list[Annotated[float, Range(-1e300, 1e300)]]]
    weights: list[list[Annotated[float, Range(0, 1e300)]]]


class StoredSpectrum(TypedDict):
    density: StoredNodes
    matrix: str
    stats: str
    trace: float
    trace_error: float
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredMeanMode(TypedDict):
    lambda_max: float
    share: float
    converged: bool
    residual: float
    u_statistic: float
    v_statistic: float
    upper: float
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredTraining(TypedDict):
    losses: list[float]
    evaluations: list[dict[str, float]]
    diverged_at: Count | None
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredRehearsal(TypedDict):
    lr: Positive
    steps: Count
    losses: list[float]
    diverged_at: Count | None
    held_out: list[float]
    metric: float
    passes: float
    seconds: float


class StoredTuningCost(TypedDict):
    passes_predicted: tuple[float, float]
    passes_used: float
    share: float
    seconds_predicted: tuple[float, float]
    seconds_used: float


class StoredTuning(TypedDict):
    lr: Positive
    lr_range: tuple[Positive, Positive]
    reason: str
    cost: StoredTuningCost
    rehearsals: list[StoredRehearsal]
    notes: list[str]
    steps: Count
    optimizer: str
    schedule: str
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredEvidence(TypedDict):
    what: str
    value: float
    spread: float
    limit: float


class StoredFindingCost(TypedDict):
    value: float
    spread: float
    unit: str
    how: str
    share: float


class StoredFinding(TypedDict):
    rule: str
    name: str
    severity: str
    layers: list[str]
    text: str
    evidence: StoredEvidence
    cost: StoredFindingCost
    fix: str
    source: str


class StoredDiagnosis(TypedDict):
    findings: list[StoredFinding]
    looked_at: list[str]
    rules: list[str]
    skipped: dict[str, str]
    notes: list[str]
    passes: float
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredMethod(TypedDict):
    iterations: Count
    to_target: Count | None
    seconds: float
    reason: str
    gap: list[float]


class StoredPromise(TypedDict):
    of: str
    measured: list[float]
    bound: list[float]


class StoredComparison(TypedDict):
    title: str
    best: float
    target: float
    notes: list[str]
    promise: StoredPromise | None
    methods: dict[str, StoredMethod]
    environment: NotRequired[dict[str, Any]]
    command: NotRequired[str]


class StoredWindow(TypedDict):
    first: Count
    last: Count
    band_mean: float
    beta_median: float
    spikes: float


class StoredLandscapeLayer(TypedDict):
    layer: str
    shift: Numbers
    shift_cosine: Numbers


class StoredLandscapeRun(TypedDict):
    network: str
    norm: str
    seed: Count
    final_loss: float
    diverged_at: Count | None
    seconds: float
    seconds_measuring: float
    windows: list[StoredWindow]
    snapshots: dict[str, Numbers]
    layers: list[StoredLandscapeLayer]
    settings: dict[str, Any]
    environment: dict[str, Any]


class StoredLandscapes(TypedDict):
    runs: list[StoredLandscapeRun]


class StoredHead(TypedDict):
    """Schema of the first line of a Monitor's file."""

    environment: NotRequired[dict[str, Any]]
    command: NotRequired[str]
