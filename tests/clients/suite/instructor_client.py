# needs: instructor==1.17.0
# speaks: OpenAI
# when: all
from question import ASKED, QUESTION, ROOT, expect

import instructor
import openai
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel


class Port(BaseModel):
    port: int


# A model that cannot force a format refuses it. The error, which the client shows to its user, names those that can.
client = instructor.from_openai(openai.OpenAI(base_url=ROOT + "/v1", api_key="unused"), mode=instructor.Mode.JSON)
try:
    client.create(model="guide", messages=ASKED, response_model=Port, max_retries=0)
except (InstructorRetryException, openai.BadRequestError) as error:
    assert "llama-server" in str(error), error
else:
    raise AssertionError("it was forced")
