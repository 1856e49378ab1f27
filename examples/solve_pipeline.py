"""GDNP inside scikit-learn: a pipeline, a grid search over it, and the model in a file.

    python examples/solve_pipeline.py --out digits.joblib

Which of the digits are odd; some seconds on a CPU.
"""

import argparse
from pathlib import Path

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import normscope as ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits.joblib"))
    args = parser.parse_args()

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y % 2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), ns.solve.GDNPClassifier(max_iter=500, tol=1e-3))
    search = GridSearchCV(pipeline, {"gdnpclassifier__alpha": [1e-4, 1e-3, 1e-2]}, cv=3).fit(x_train, y_train)
    joblib.dump(search.best_estimator_, args.out)
    print(f"alpha {search.best_params_['gdnpclassifier__alpha']:g}: {search.score(x_test, y_test):.3f} right")
    history = search.best_estimator_[-1].history_[0]
    print(f"{len(history['objective'])} iterations, the bound's least slack {history['slack'].min():.3g}")


if __name__ == "__main__":
    main()
