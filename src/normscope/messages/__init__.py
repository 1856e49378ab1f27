"""Messages to the user.

short_texts     values and errors of other code, brief and on one line; the severity of a verdict
choices         refuse a name that is none of the known ones, and suggest the nearest
out_of_memory   recognize torch's errors that say so
"""

from normscope.messages.short_texts import brief as brief
from normscope.messages.short_texts import duration as duration
from normscope.messages.short_texts import first_line as first_line
from normscope.messages.short_texts import quoted as quoted
from normscope.messages.short_texts import raised_at as raised_at
from normscope.messages.short_texts import severity as severity
