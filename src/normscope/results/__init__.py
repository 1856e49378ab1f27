"""How results become files and pages, and come back.

plain_json      a result as plain JSON
saving          write a file as a whole
decoding        read a stored file, each value checked against its type
environment     versions and device, stored with every number
invocation      the running command, stored with results
reporting       `.report()` and `.figures()`, the base of all results
"""

from normscope.results.plain_json import plain as plain
from normscope.results.plain_json import write_json as write_json
