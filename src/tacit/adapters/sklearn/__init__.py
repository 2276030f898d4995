"""Methods in the shape of scikit-learn's estimators: constructor, ``fit``, ``predict`` or ``transform``.

What scikit-learn learns from the records is declared here: classes, bounds, the number of records. A fit spends its
budget anew each time, so fits inside cross-validation are refused, unless all are charged to one ledger with a cap. A
certificate counts what the estimator reads and nothing else, so a fit is refused beside steps that are fitted on the
same records without noise: in pipelines, searches and ensembles. scikit-learn does not tell an estimator what it is a
part of; the stack of calls does.
"""

from tacit.extras import need

need("tacit.estimators", "sklearn")

from tacit.adapters.sklearn.base import COMPOSED, LOOPS, STATELESS, TRIED, WORKERS  # noqa: E402
from tacit.adapters.sklearn.checks import LEVEL  # noqa: E402
from tacit.adapters.sklearn.mixture import PrivateMixture  # noqa: E402
from tacit.adapters.sklearn.regression import PrivateLinearRegression, PrivateLogisticRegression  # noqa: E402
from tacit.adapters.sklearn.scaling import BoundsScaler  # noqa: E402
from tacit.adapters.sklearn.topics import PrivateTopics  # noqa: E402

__all__ = [
    "COMPOSED",
    "LEVEL",
    "LOOPS",
    "STATELESS",
    "TRIED",
    "WORKERS",
    "BoundsScaler",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMixture",
    "PrivateTopics",
]
