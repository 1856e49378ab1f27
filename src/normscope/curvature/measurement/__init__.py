"""The steps of one call of `measure`.

request                 the arguments, with defaults filled in
all_steps               all steps in their order, from the batches to the result
eigenvalue_searches     the searches; `spectrum_ends` is what each one found
float64_check           what they found, checked in float64
further_batches         how much the numbers vary over batches
notes                   facts that the reader of the result should know
measured_numbers        all numbers, as they were measured
result_of_numbers       the `Measurement` made of them
"""
