from normscope.solve.regressor import GDNPRegressor
