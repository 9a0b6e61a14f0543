"""The Spark that a query runs in: the query, its checkpoint files, the cluster, Java, Python workers. Driver only,
except `tasks`, which runs in the workers too.
"""
